"""A job's Redis outlives whoever asked for it, is found again, comes back, and ends on request."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.comm.embedded_redis import find_server
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError
from engine.job.keeper import FILE, Join, find_or_start, read_join
from engine.job.remote import Kept
from engine.job.server import Server, ServerLost
from engine.processes import family_of

pytestmark = pytest.mark.multi


def wait_until(what: Callable[[], object], *, deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _has_server() -> None:
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)


def test_a_killed_keepers_server_comes_back_with_its_data_on_its_address(tmp_path: Path):
    join = find_or_start(tmp_path, "msctl:t", "127.0.0.1")
    kept = Kept(tmp_path, "msctl:t", "127.0.0.1", join)
    try:
        client = Client(parse_url(join.redis), patience_s=30.0)
        client.call(("SET", "a", "b"))
        assert kept.is_alive
        os.kill(join.keeper_pid, signal.SIGKILL)
        wait_until(lambda: not kept.is_alive)
        server = Server(join.redis, kept)
        assert "is back" in server.mend()
        assert client.call(("GET", "a"))[0] == b"b"
        assert kept.is_alive
        assert kept.pid != join.keeper_pid
        assert find_or_start(tmp_path, "msctl:t", "127.0.0.1").redis == join.redis
    finally:
        kept.end()
    wait_until(lambda: not (tmp_path / FILE).exists())
    wait_until(lambda: not Path(join.data).exists())


def test_of_a_keeper_on_another_machine_nothing_is_known(tmp_path: Path):
    join = Join(redis="redis://10.0.0.1:1/0", job="msctl:t", keeper_pid=2**22, machine="elsewhere")
    kept = Kept(tmp_path, "msctl:t", "127.0.0.1", join)
    assert kept.is_alive
    kept.end()  # touches no process of this machine


def test_a_killed_keeper_whose_data_are_gone_is_an_error(tmp_path: Path):
    join = find_or_start(tmp_path, "msctl:t", "127.0.0.1")
    kept = Kept(tmp_path, "msctl:t", "127.0.0.1", join)
    os.kill(join.keeper_pid, signal.SIGKILL)
    wait_until(lambda: not kept.is_alive)
    shutil.rmtree(join.data)
    server = Server(join.redis, kept)
    try:
        with pytest.raises(ServerLost, match="its data are gone"):
            server.mend()
    finally:
        os.kill(read_join(tmp_path / FILE).keeper_pid, signal.SIGTERM)


def test_one_server_for_all_drivers_of_a_job(tmp_path: Path):
    join = find_or_start(tmp_path, "msctl:t", "127.0.0.1")
    try:
        assert find_or_start(tmp_path, "msctl:t", "127.0.0.1") == join
        assert (tmp_path / "join.secret").stat().st_mode & 0o777 == 0o600
        listing = Path(f"/proc/{join.keeper_pid}/cmdline").read_bytes()
        secret = (tmp_path / "join.secret").read_bytes()
        assert secret not in listing
        assert secret not in (tmp_path / FILE).read_bytes()
        client = Client(parse_url(join.redis), patience_s=30.0)
        client.call(("SET", "a", "b"))
        time.sleep(1.1)  # the server writes its log once a second
        server = family_of(join.keeper_pid)[1]
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: client.call(("GET", "a"))[0] == b"b")
    finally:
        os.kill(join.keeper_pid, signal.SIGTERM)
    wait_until(lambda: not (tmp_path / FILE).exists())
    assert not (tmp_path / "join.secret").exists()
