"""Servers that die, freeze, refuse and fill up: both forms of the store go on or say why not."""

import os
import re
import signal
import threading
import time

import pytest

dist = pytest.importorskip("torch.distributed")

from engine.comm.embedded_redis import EmbeddedRedis  # noqa: E402
from engine.comm.native_store import best_store, library_path, native_store  # noqa: E402
from engine.comm.resp import Client  # noqa: E402
from engine.comm.store import RedisStore  # noqa: E402
from engine.errors import MissingError  # noqa: E402
from tests.engine.comm.forms import opened, program  # noqa: E402

pytestmark = pytest.mark.multi


@pytest.fixture(params=["python", pytest.param("native", marks=pytest.mark.native)])
def form(request):
    return request.param


@pytest.fixture
def make(request, form):
    """Open a store of the form under test."""
    return lambda url, **options: opened(request, form, url, **options)


@pytest.fixture(scope="module")
def server():
    with EmbeddedRedis(program=program("redis")) as running:
        yield running


def test_killed_and_restarted_while_a_rank_waits(redis, make):
    store = make(redis.url, prefix="r/", timeout_s=20)
    store.set("before", "kept")
    store.add("n", 41)
    got = []
    waiter = threading.Thread(target=lambda: got.append(store.get("late")))
    waiter.start()
    time.sleep(0.1)
    pid = redis.pid
    os.kill(pid, signal.SIGKILL)
    while redis.is_alive:
        time.sleep(0.005)
    redis.restart()
    assert store.get("before") == b"kept"
    assert store.add("n", 1) == 42
    store.set("late", "came")
    waiter.join(10)
    assert got == [b"came"]


def test_a_frozen_server_is_waited_for_and_counts_once(redis, make, form):
    client = Client(redis.local, io_s=0.2, patience_s=10)
    impatient = {"io_s": 0.2} if form == "native" else {"client": client}
    store = make(redis.url, prefix="f/", timeout_s=10, **impatient)
    store.add("n", 1)
    os.kill(redis.pid, signal.SIGSTOP)
    thaw = threading.Timer(1.0, os.kill, [redis.pid, signal.SIGCONT])
    thaw.start()
    # the first request is executed after the thaw although its sender gave up and asked again
    assert store.add("n", 1) == 2
    assert store.get("n") == b"2"
    thaw.join()


def test_a_forked_child_opens_its_own_connections(redis, make):
    store = make(redis.url, prefix="k/", timeout_s=5)
    store.set("parent", "1")
    pid = os.fork()
    if pid == 0:
        good = store.get("parent") == b"1"
        store.set("child", "2")
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.get("child") == b"2"
    assert store.get("parent") == b"1"


def test_a_wrong_password_is_refused_at_once(redis, make):
    url = redis.url.replace(redis.password, "wrong")
    start = time.monotonic()
    with pytest.raises(dist.DistStoreError, match="refused the password"):
        make(url, timeout_s=30).set("a", "1")
    assert time.monotonic() - start < 2


def test_a_full_server_says_so(redis, make):
    client = Client(redis.local)
    client.call(("CONFIG", "SET", "maxmemory", "1mb"))
    try:
        with pytest.raises(dist.DistStoreError, match="out of memory"):
            _fill(make(redis.url, timeout_s=5))
    finally:
        client.call(("CONFIG", "SET", "maxmemory", "1gb"))


def _fill(store):
    for n in range(4):
        store.set(f"big{n}", b"x" * (1 << 20))


def test_an_unreachable_server_is_an_error_within_the_time_out(make):
    start = time.monotonic()
    with pytest.raises(dist.DistStoreError, match="does not answer"):
        make("redis://127.0.0.1:1", timeout_s=0.5).get("a")
    assert time.monotonic() - start < 3


@pytest.mark.native
def test_both_forms_read_each_other(redis, native):
    ours = RedisStore(redis.url, prefix="p/", timeout_s=5)
    theirs = native(redis.url, prefix="p/", timeout_s=5)
    ours.set("a", "1")
    assert theirs.get("a") == b"1"
    timer = threading.Timer(0.05, theirs.add, ["n", 3])
    timer.start()
    assert ours.get("n") == b"3"
    timer.join()
    theirs.queue_push("q", "x")
    assert ours.queue_pop("q") == b"x"
    assert theirs.list_keys() == ours.list_keys() == ["a", "n"]


@pytest.mark.native
def test_torch_keeps_the_native_store_alive_by_itself(redis, native):
    inner = dist.PrefixStore("g", native(redis.url, timeout_s=5))  # no Python name holds it
    inner.set("k", "v")
    assert inner.get("k") == b"v"


@pytest.mark.native
def test_answers_that_no_redis_gives_are_errors(native):
    import socket

    for answer in (b"HTTP/1.1 400\r\n\r\n", b"$99999999999\r\n", b":x\r\n", b"*1\r\n" * 50, b""):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]

            def serve(listener=listener, answer=answer):
                client, _ = listener.accept()
                with client:
                    client.recv(1 << 16)
                    client.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            # one try only: the next connection would find nobody
            store = native(f"redis://127.0.0.1:{port}", timeout_s=0.01, io_s=2.0)
            with pytest.raises(dist.DistStoreError, match="does not answer"):
                store.add("a", 1)
            thread.join()


def test_without_a_library_the_python_form_serves(redis, tmp_path, monkeypatch):
    assert library_path(tmp_path).parent == tmp_path
    with pytest.raises(MissingError, match="no native store") as caught:
        native_store(redis.url, library=tmp_path / "absent.so")
    assert re.search("Python form works without", caught.value.remedy)
    monkeypatch.setattr("engine.comm.native_store.library_path", lambda: tmp_path / "absent.so")
    assert isinstance(best_store(redis.url, prefix="", timeout_s=1), RedisStore)
