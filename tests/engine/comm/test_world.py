"""Joining a run: all ranks or an error that says who and where."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from bench.ranks import World
from engine.comm.embedded_redis import EmbeddedRedis, find_server
from engine.comm.lost import PeerLost
from engine.comm.world import Rendezvous, end_world, start_world
from engine.errors import MissingError

pytestmark = pytest.mark.multi


def join(rank: int, meet: Rendezvous, args: dict) -> list:
    """Join and leave, say what was seen."""
    before = dist.is_initialized()
    meet = meet._replace(**args["place"])
    start_world(rank, args["world"], meet, backend="gloo", timeout_s=60)
    seen = [dist.get_rank(), dist.get_world_size()]
    end_world()
    end_world()  # a second time does nothing
    return [before, *seen, dist.is_initialized()]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A private Redis, for ranks of this machine."""
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)
    with EmbeddedRedis() as server:
        yield server.url_by_file


@pytest.fixture(params=["tcp", "redis"])
def place(request) -> dict:
    """Where to meet, as a part of a rank's arguments."""
    if request.param == "tcp":
        return {}
    prefix = f"{request.node.name}/"
    return {"store_url": request.getfixturevalue("url"), "prefix": prefix}


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_join_and_leave(world: World, ranks, place):
    found = world.run(f"{__name__}:join", ranks, {"world": ranks, "place": place})
    assert found == [[False, rank, ranks, False] for rank in range(ranks)]


def wait_in_vain(rank: int, meet: Rendezvous, args: dict) -> dict:
    """Two ranks of three, whose peer never comes."""
    start = time.monotonic()
    meet = meet._replace(nodes=("node-00", "node-01", "node-02"), **args)
    try:
        start_world(rank, 3, meet, backend="gloo", timeout_s=1)
    except PeerLost as error:
        time.sleep(1)  # the store of rank 0 must outlive the other's question
        return {"what": error.what, "remedy": error.remedy, "s": time.monotonic() - start}
    return {"what": "nothing happened"}


def test_a_rank_that_never_comes_is_named(world: World, place):
    for rank, found in enumerate(world.run(f"{__name__}:wait_in_vain", 2, place)):
        assert f"rank {rank} of 3 could not join at " in found["what"]
        assert "2 of 3 ranks came to 'start' within 1 s" in found["what"]
        assert found["what"].endswith("missing: rank 2 on node-02")
        assert "monitor.timeout_s" in found["remedy"]
        assert found["s"] < 30


def join_late(rank: int, meet: Rendezvous, args: dict) -> float:
    """The last rank comes when the Redis has been killed and is back."""
    if rank == 2:
        time.sleep(1.5)
    start_world(rank, 3, meet._replace(**args), backend="gloo", timeout_s=60)
    total = torch.ones(1)
    dist.all_reduce(total)
    end_world()
    return float(total)


def test_a_redis_that_is_killed_while_ranks_meet_is_only_a_delay(world: World):
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)
    with EmbeddedRedis(host="127.0.0.1") as server:

        def strike() -> None:
            os.kill(server.pid, signal.SIGKILL)
            while server.is_alive:
                time.sleep(0.005)
            server.restart()

        timer = threading.Timer(0.7, strike)
        timer.start()
        place = {"store_url": server.url_by_file, "prefix": "late/"}
        assert world.run(f"{__name__}:join_late", 3, place) == [3.0] * 3
        timer.join()


def refused(rank: int, meet: Rendezvous, url: str) -> list[str]:
    """What a rank says of a Redis that does not let it in."""
    try:
        start_world(rank, 2, meet._replace(store_url=url), backend="gloo", timeout_s=1)
    except MissingError as error:
        return [error.what, error.remedy]
    return ["nothing happened"]


def test_a_redis_that_cannot_be_used_is_no_lost_peer(world: World, url):
    wrong = url.partition("?")[0] + "?password=wrong"
    ((what, remedy),) = world.run(f"{__name__}:refused", 1, wrong)
    assert "Redis refused the password" in what
    assert "right one in the URL" in remedy
    ((what, remedy),) = world.run(f"{__name__}:refused", 1, "redis://127.0.0.1:9/0")
    assert "Redis at 127.0.0.1:9 does not answer" in what
    assert "redis-cli" in remedy


def nobody_home(rank: int, meet: Rendezvous, args: dict) -> str:
    """A rank that is sent to an address where nobody listens."""
    try:
        start_world(1, 2, meet._replace(port=9), backend="gloo", timeout_s=1)
    except PeerLost as error:
        return error.what
    return "nothing happened"


def test_an_address_without_a_store_is_named(world: World):
    (what,) = world.run(f"{__name__}:nobody_home", 1)
    assert "rank 1 of 2 could not join at 127.0.0.1:9" in what
