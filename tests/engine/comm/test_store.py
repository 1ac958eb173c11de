"""One suite of store operations over Redis, Valkey and torch's own TCPStore; then what only ours
does."""

import multiprocessing
import re
import threading
import time
from datetime import timedelta

import pytest

dist = pytest.importorskip("torch.distributed")
torch = pytest.importorskip("torch")

from engine.comm.embedded_redis import EmbeddedRedis  # noqa: E402
from engine.comm.resp import parse_url  # noqa: E402
from engine.comm.store import RedisStore  # noqa: E402
from engine.errors import RunFailed  # noqa: E402
from tests.engine.comm.forms import opened, program  # noqa: E402

pytestmark = pytest.mark.multi
SHORT = timedelta(milliseconds=200)


FORMS = ["redis", "valkey", pytest.param("native", marks=pytest.mark.native), "tcp"]


@pytest.fixture(params=FORMS)
def store(request):
    if request.param == "tcp":
        yield dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=5))
        return
    with EmbeddedRedis(program=program(request.param)) as running:
        yield opened(request, request.param, running.url, prefix="job[1]*/", timeout_s=5.0)


def test_set_get_and_overwrite(store):
    store.set("a", "1")
    assert store.get("a") == b"1"
    store.set("a", "22")
    assert store.get("a") == b"22"
    store.set("binary", b"\x00\xff\r\n")
    assert store.get("binary") == b"\x00\xff\r\n"
    store.set("empty", "")
    assert store.get("empty") == b""


def test_add_counts_and_reads(store):
    assert store.add("n", 5) == 5
    assert store.add("n", -2) == 3
    assert store.add("n", 0) == 3
    assert store.add("fresh", 0) == 0
    assert store.get("n") == b"3"


def test_check_and_wait(store):
    assert not store.check(["x"])
    store.set("x", "1")
    assert store.check(["x"])
    assert not store.check(["x", "y"])
    store.wait(["x"], SHORT)
    with pytest.raises(dist.DistStoreError, match="y"):
        store.wait(["x", "y"], SHORT)


def test_a_waiter_is_woken_by_each_way_a_key_can_come_to_be(store):
    makers = {
        "set": lambda k: store.set(k, "1"),
        "add": lambda k: store.add(k, 1),
        "cas": lambda k: store.compare_set(k, "", "1"),
        "append": lambda k: store.append(k, "1"),
        "multi": lambda k: store.multi_set([k], ["1"]),
    }
    for key, make in makers.items():
        timer = threading.Timer(0.05, make, [key])
        other = store.clone()
        timer.start()
        start = time.monotonic()
        assert other.get(key) == b"1"
        assert time.monotonic() - start < 2
        timer.join()


def test_compare_set(store):
    assert store.compare_set("c", "", "first") == b"first"
    assert store.compare_set("c", "wrong", "second") == b"first"
    assert store.compare_set("c", "first", "second") == b"second"
    assert store.compare_set("absent", "expected", "new") == b"expected"
    assert not store.check(["absent"])


def test_append_and_multi_operations(store):
    store.append("log", "a")
    store.append("log", "b")
    assert store.get("log") == b"ab"
    store.multi_set(["k1", "k2"], ["v1", "v2"])
    assert store.multi_get(["k2", "k1"]) == [b"v2", b"v1"]
    assert store.has_extended_api()


def test_delete_and_count(store):
    before = store.num_keys()
    store.set("gone", "1")
    assert store.num_keys() == before + 1
    assert store.delete_key("gone")
    assert not store.delete_key("gone")
    assert store.num_keys() == before
    with pytest.raises(dist.DistStoreError):
        store.wait(["gone"], SHORT)


def test_queues(store):
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.queue_len("q") == 2
    assert [store.queue_pop("q"), store.queue_pop("q")] == [b"1", b"2"]
    assert store.queue_len("q") == 0
    with pytest.raises(RuntimeError):
        store.queue_pop("q", False)
    other = store.clone()
    timer = threading.Timer(0.05, other.queue_push, ["q", "late"])
    timer.start()
    assert store.queue_pop("q") == b"late"
    timer.join()


def test_list_keys(store):
    store.set("one", "1")
    store.set("two", "2")
    assert {"one", "two"} <= set(store.list_keys())


def test_a_prefix_store_on_top(store):
    inner = dist.PrefixStore("group", store)
    inner.set("k", "v")
    assert inner.get("k") == b"v"
    assert store.get("group/k") == b"v"
    assert inner.add("n", 2) == 2
    inner.set_timeout(SHORT)
    with pytest.raises(dist.DistStoreError):
        inner.get("never")
    inner.set_timeout(timedelta(seconds=5))


def test_prefixes_keep_jobs_apart(redis):
    a, b = (RedisStore(redis.url, prefix=p, timeout_s=2) for p in ("a/", "b/"))
    a.set("k", "1")
    assert not b.check(["k"])
    assert b.list_keys() == []


# what only ours does


def _rank(url, rank, world, queue):
    store = RedisStore(url, prefix="gloo/", timeout_s=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    pairs = [[r, r + 1] for r in range(0, world, 2)]
    mine = dist.new_group(pairs[rank // 2], use_local_synchronization=True)
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.all_reduce(value, group=mine)
    queue.put((rank, float(value)))
    dist.destroy_process_group()


def test_gloo_ranks_meet_and_make_groups_through_it(redis):
    world, fork = 4, multiprocessing.get_context("fork")
    queue = fork.Queue()
    ranks = [fork.Process(target=_rank, args=(redis.url, r, world, queue)) for r in range(world)]
    for process in ranks:
        process.start()
    found = dict(queue.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(10)
    assert found == {r: 8.0 for r in range(world)}


def test_a_meeting_says_who_did_not_come(redis):
    stores = [RedisStore(redis.url, prefix="m/", timeout_s=5) for _ in range(3)]
    nodes = {r: f"node-{r // 8:02d}" for r in range(1024)}
    caught = []

    def come(store, rank):
        try:
            store.meet("start", rank, 4, nodes=nodes, timeout_s=0.5)
        except RunFailed as error:
            caught.append(error)

    threads = [
        threading.Thread(target=come, args=(s, r)) for s, r in zip(stores, (0, 1, 3), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caught) == 3
    assert "3 of 4 ranks came" in caught[0].what
    assert "missing: rank 2 on node-00" in caught[0].what
    assert "selfcheck" in caught[0].remedy


def test_a_meeting_of_1024_costs_two_calls_a_rank(redis):
    store = RedisStore(redis.url, prefix="big/", timeout_s=20)
    for rank in range(1023):
        store.client.call(
            ("EVAL", "return redis.call('HSET',KEYS[1],ARGV[1],'n')", 1, "big/m:s", rank)
        )
    store.client.calls = 0
    store.meet("s", 1023, 1024)
    assert store.client.calls == 2
    with pytest.raises(RunFailed, match=re.escape("1,024 of 1,025 ranks came")):
        _half(store)


def _half(store):
    for rank in range(1023):
        store.client.call(("HSET", "big/m:h", rank, "n"))
    store.meet("h", 1024, 1025, nodes={1023: "node-64"}, timeout_s=0.05)


def test_an_exchange_gives_all_and_takes_what_is_needed(redis):
    stores = [RedisStore(redis.url, prefix="x/", timeout_s=5) for _ in range(2)]
    found = {}

    def run(rank):
        mine = {f"id{rank}": f"from {rank}".encode()}
        found[rank] = stores[rank].exchange("ids", mine, [f"id{1 - rank}"], rank=rank, world=2)

    threads = [threading.Thread(target=run, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: {"id1": b"from 1"}, 1: {"id0": b"from 0"}}


def test_the_server_clock_is_near_ours(redis):
    store = RedisStore(redis.url, timeout_s=5)
    assert abs(store.clock_offset_s()) < 0.1
    assert parse_url(redis.url).password == redis.password
