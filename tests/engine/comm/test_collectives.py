"""Every collective and message against arithmetic, on two to four ranks, small and large."""

import os
from typing import Any

import pytest
import torch

from bench.ranks import World
from engine.comm.collectives import (
    DONE,
    Group,
    Work,
    all_gather,
    all_reduce,
    barrier,
    gather_bytes,
    receive,
    reduce_scatter,
    send,
)
from engine.comm.lost import PeerLost
from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.spec.layout import ParallelLayout

ALONE = Group("tp", (5,), 0, None)
LARGE = 1 << 18
"""Float64 elements: two MiB, beyond the size at which gloo's exchange changes."""


def test_alone_everything_is_a_copy_or_nothing():
    x = torch.arange(6.0)
    assert all_reduce(x, ALONE) is DONE
    out = torch.zeros(6)
    all_gather(out, x, ALONE).wait()
    assert torch.equal(out, x)
    out.zero_()
    reduce_scatter(out, x, ALONE).wait()
    assert torch.equal(out, x)
    all_gather(out, out, ALONE).wait()
    barrier(ALONE)
    assert gather_bytes(b"a\0b", ALONE) == [b"a\0b"]


def test_a_work_may_be_waited_for_any_number_of_times():
    class Handle:
        waits = 0

        def wait(self) -> None:
            Handle.waits += 1

    calls: list[int] = []
    work = Work("test", [Handle()]).then(lambda: calls.append(1))  # type: ignore[list-item]
    for _ in range(3):
        work.wait()
    assert Handle.waits == 1
    assert calls == [1]


def test_a_failed_handle_says_what_it_was_for():
    class Broken:
        def wait(self) -> None:
            raise RuntimeError("connection closed by peer")

    with pytest.raises(PeerLost, match=r"all_reduce in group tp .*closed by peer"):
        Work("all_reduce in group tp of ranks [0, 1]", [Broken()]).wait()  # type: ignore[list-item]


def arithmetic(rank: int, meet: Rendezvous, args: dict[str, Any]) -> dict[str, bool]:
    """All operations on one group; which of them gave what arithmetic says."""
    size = args["ranks"]
    start_world(rank, size, meet, backend="gloo", timeout_s=60)
    group = build_mesh(ParallelLayout(dp=size), rank, backend="gloo", timeout_s=60).dp_reduce
    found: dict[str, bool] = {}
    for name, n in (("small", 6), ("large", LARGE)):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
            found |= _values(f"{name} {dtype}", n, dtype, group)
        found[f"{name} order"] = _order(n, group)
    found["bytes"] = gather_bytes(bytes([rank]) * rank, group) == [
        bytes([r]) * r for r in range(size)
    ]
    found["messages"] = _messages(group)
    barrier(group)
    end_world()
    return found


def _values(name: str, n: int, dtype: torch.dtype, group: Group) -> dict[str, bool]:
    size, rank = group.size, group.index
    base = torch.arange(n) % 8
    x = (base + rank).to(dtype)
    total = (base * size + sum(range(size))).to(dtype)
    reduced, largest = x.clone(), x.clone()
    works = [all_reduce(reduced, group), all_reduce(largest, group, op="max")]
    gathered = torch.empty(size * n, dtype=dtype)
    works.append(all_gather(gathered, x, group))
    inside = torch.empty(size * n, dtype=dtype)
    inside[rank * n : (rank + 1) * n] = x
    works.append(all_gather(inside, inside[rank * n : (rank + 1) * n], group))
    whole = torch.cat([x + part for part in range(size)])
    scattered = torch.empty(n, dtype=dtype)
    works.append(reduce_scatter(scattered, whole, group))
    in_place = whole.clone()
    works.append(reduce_scatter(in_place[rank * n : (rank + 1) * n], in_place, group))
    turns = [torch.empty(size * n, dtype=dtype) for _ in range(3)]
    works += [all_gather(out, x, group, in_turn=True) for out in turns]
    parts_in_turn = [torch.empty(n, dtype=dtype) for _ in range(3)]
    works += [reduce_scatter(out, whole, group, in_turn=True) for out in parts_in_turn]
    columns = torch.stack((x, x), 1).t()  # rows with gaps between their elements
    is_swapped = n > 6 and size == 2
    works.append(all_reduce(columns, group) if is_swapped else DONE)
    for work in reversed(works):  # in any order, and more than once
        work.wait()
        work.wait()
    parts = torch.cat([(base + r).to(dtype) for r in range(size)])
    wanted = total + size * rank
    return {
        f"{name} sum": torch.equal(reduced, total),
        f"{name} max": torch.equal(largest, (base + size - 1).to(dtype)),
        f"{name} gather": torch.equal(gathered, parts) and torch.equal(inside, parts),
        f"{name} gather in turn": all(torch.equal(out, parts) for out in turns),
        f"{name} scatter in turn": all(torch.equal(out, wanted) for out in parts_in_turn),
        f"{name} sum with gaps": not is_swapped or torch.equal(columns[1], total),
        f"{name} scatter": torch.equal(scattered, wanted),
        f"{name} scatter in place": torch.equal(in_place[rank * n : (rank + 1) * n], wanted),
    }


def _order(n: int, group: Group) -> bool:
    """Sums go in rank order: these numbers give another result in any other order."""
    values = [1.0, 1e16, -1e16, 3.0][: group.size]
    whole = torch.full((group.size * n,), values[group.index], dtype=torch.float64)
    expected = 0.0
    for value in values:
        expected += value
    for _ in range(3):
        out = torch.empty(n, dtype=torch.float64)
        reduce_scatter(out, whole, group).wait()
        if not bool((out == expected).all()):
            return False
    return True


def _messages(group: Group) -> bool:
    """Messages round the ring, received in the other order than sent: tags pair them."""
    to = group.ranks[(group.index + 1) % group.size]
    source = group.ranks[group.index - 1]
    got = [torch.empty(3) for _ in range(4)]
    receives = [receive(got[tag], source, group, tag=tag) for tag in reversed(range(4))]
    sends = [send(torch.full((3,), float(tag)), to, group, tag=tag) for tag in range(4)]
    for work in (*receives, *sends):
        work.wait()
    return all(bool((got[tag] == tag).all()) for tag in range(4))


@pytest.mark.multi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_operation_gives_what_arithmetic_says(world: World, ranks):
    for found in world.run(f"{__name__}:arithmetic", ranks, {"ranks": ranks}):
        assert [name for name, right in found.items() if not right] == []


def lose_a_peer(rank: int, meet: Rendezvous, args: dict[str, str]) -> str:
    """The last rank leaves; what the others are told by an operation of that group."""
    start_world(rank, 3, meet, backend="gloo", timeout_s=60)
    group = build_mesh(ParallelLayout(dp=3), rank, backend="gloo", timeout_s=60).dp_reduce
    barrier(group)
    if rank == 2:
        os._exit(0)
    n = LARGE if args["size"] == "large" else 6
    operations = {
        "all_reduce": lambda: all_reduce(torch.ones(n), group),
        "all_gather": lambda: all_gather(torch.ones(3 * n), torch.ones(n), group),
        "reduce_scatter": lambda: reduce_scatter(torch.ones(n), torch.ones(3 * n), group),
        "receive": lambda: receive(torch.ones(n), 2, group, tag=0),
    }
    try:
        for _ in range(100):  # the first may still fit into a buffer
            operations[args["operation"]]().wait()
    except PeerLost as error:
        return error.what
    return "nothing happened"


@pytest.mark.multi
@pytest.mark.parametrize(
    ("operation", "size"),
    [("all_reduce", "small"), ("all_gather", "small"), ("receive", "small"),
     ("reduce_scatter", "small"), ("reduce_scatter", "large")],
)  # fmt: skip
def test_a_lost_peer_fails_the_operation_and_names_the_group(world: World, operation, size):
    args = {"operation": operation, "size": size}
    *found, gone = world.run(f"{__name__}:lose_a_peer", 3, args)
    assert gone is None
    for what in found:
        assert what.startswith(operation)
        assert "in group dp_reduce of ranks [0, 1, 2] failed: " in what
