"""The job's Redis is brought back when it dies."""

import os
import signal
import time

import msgspec
import pytest

from engine.comm.embedded_redis import find_server
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError
from engine.job.server import job_server
from tests.engine.train.single import recipe


def stored(wish: str):
    made = recipe()
    return msgspec.structs.replace(made, train=msgspec.structs.replace(made.train, store=wish))


def test_a_run_that_meets_at_rank_0_has_no_server(tmp_path):
    with job_server(stored("tcp"), tmp_path) as server:
        assert server is None


@pytest.mark.multi
def test_a_dead_server_comes_back_on_the_same_address(tmp_path):
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)
    with job_server(stored("redis"), tmp_path) as server:
        assert server.mend() == ""
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while "is back" not in server.mend():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert server.pid not in (0, pid)
        assert server.restarts == 1
        assert Client(parse_url(server.url), patience_s=5.0).call(("PING",)) == [b"PONG"]
