"""Joining a run: all ranks or an error that says who and where."""

import time

import pytest
import torch.distributed as dist

from bench.ranks import World
from engine.comm.lost import PeerLost
from engine.comm.world import Rendezvous, end_world, start_world

pytestmark = pytest.mark.multi


def join(rank: int, meet: Rendezvous, args: dict) -> list:
    """Join and leave, say what was seen."""
    before = dist.is_initialized()
    start_world(rank, args["world"], meet, backend="gloo", timeout_s=60)
    seen = [dist.get_rank(), dist.get_world_size()]
    end_world()
    end_world()  # a second time does nothing
    return [before, *seen, dist.is_initialized()]


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_join_and_leave(world: World, ranks):
    found = world.run(f"{__name__}:join", ranks, {"world": ranks})
    assert found == [[False, rank, ranks, False] for rank in range(ranks)]


def wait_in_vain(rank: int, meet: Rendezvous, args: dict) -> dict:
    """One rank of two, whose peer never comes."""
    start = time.monotonic()
    try:
        start_world(rank, 2, meet, backend="gloo", timeout_s=1)
    except PeerLost as error:
        return {"what": error.what, "remedy": error.remedy, "s": time.monotonic() - start}
    return {"what": "nothing happened"}


def test_a_rank_that_never_comes_ends_the_wait_with_an_error(world: World):
    (found,) = world.run(f"{__name__}:wait_in_vain", 1)
    assert "rank 0 of 2 could not join at 127.0.0.1:" in found["what"]
    assert "monitor.timeout_s" in found["remedy"]
    assert found["s"] < 30


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
