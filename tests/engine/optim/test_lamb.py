"""LAMB on shards against LAMB on whole tensors, under any sharding."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.case import recipe_of, reference, worst
from bench.plain_lamb import PlainLamb
from bench.ranks import World
from engine.optim.lamb import Part, ShardLamb, trust_ratio
from engine.spec.recipe import OptimSpec

TOLERANCE = 1e-13
FLOAT64_TOLERANCE = 1e-10
SPEC = OptimSpec(name="lamb", lr=1e-2, weight_decay=0.3, beta1=0.8, beta2=0.95, eps=1e-7)
STEPS = 4
LAYOUTS: list[dict[str, Any]] = [
    {}, {"vpp": 2}, {"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"dp": 2, "zero": 0},
    {"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {"pp": 2}, {"pp": 2, "vpp": 2, "dp": 2},
    {"tp": 2, "pp": 2}, {"tp": 2, "dp": 2, "zero": 0}, {"tp": 2, "dp": 2}, {"tp": 4},
]  # fmt: skip
BY_RANKS: dict[int, list[dict[str, Any]]] = {}
for _layout in LAYOUTS:
    _ranks = _layout.get("tp", 1) * _layout.get("pp", 1) * _layout.get("dp", 1)
    BY_RANKS.setdefault(_ranks, []).append(_layout)


def numbers(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).double()


@st.composite
def shardings(draw: st.DrawFn) -> tuple[list[tuple[int, bool]], list[int]]:
    """Tensors of a flat buffer (length, decayed) and the places where shards begin."""
    tensors = draw(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5))
    total = sum(length for length, _ in tensors)
    cuts = draw(st.sets(st.integers(0, total), max_size=3))
    return tensors, sorted(cuts | {0, total})


@given(shardings())
@settings(max_examples=30, deadline=None)
def test_shards_of_any_size_equal_whole_tensors(sharding):
    tensors, cuts = sharding
    lengths = [length for length, _ in tensors]
    flat = numbers(sum(lengths), 0)
    groups = [
        {
            "params": [piece.clone().requires_grad_()],
            "weight_decay": SPEC.weight_decay if decayed else 0.0,
            "scaled": decayed,
        }
        for piece, (_, decayed) in zip(flat.split(lengths), tensors, strict=True)
    ]
    plain = PlainLamb(groups, betas=(SPEC.beta1, SPEC.beta2), eps=SPEC.eps, lr=SPEC.lr)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    squares: dict[int, torch.Tensor] = {}
    shards = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        parts = []
        for start, (length, decayed) in zip(starts, tensors, strict=True):
            first = min(max(begin, start), end)
            last = max(first, min(end, start + length))
            parts.append(Part(first - begin, last - begin, decayed))

        def gather(own, number=number):
            squares[number] = own.clone()
            return own.copy_(sum(squares.values()))

        shards.append((begin, end, ShardLamb(SPEC, flat[begin:end].clone(), parts, gather)))
    for step in range(STEPS):
        grad = numbers(len(flat), step + 1)
        for group, piece in zip(groups, grad.split(lengths), strict=True):
            group["params"][0].grad = 0.5 * piece
        plain.step()
        squares.clear()
        _one_by_one(shards, grad, step, squares)
    exact = torch.cat([group["params"][0].detach() for group in groups])
    found = torch.cat([shard.master for _, _, shard in shards])
    assert float((found - exact).abs().max()) < TOLERANCE * max(1.0, float(exact.abs().max()))


def _one_by_one(shards, grad, step, squares):
    """Ranks take turns here, so each first says its squares and steps when all are known."""
    for begin, end, shard in shards:
        state = {slot: moment.clone() for slot, moment in shard.state.items()}
        master = shard.master.clone()
        shard.step(grad[begin:end].clone(), lr=SPEC.lr, update=step, scale=0.5)
        shard.master.copy_(master)
        for slot, moment in state.items():
            shard.state[slot].copy_(moment)
    for begin, end, shard in shards:
        shard.step(grad[begin:end].clone(), lr=SPEC.lr, update=step, scale=0.5)


def test_ratios_are_one_where_there_is_nothing_to_divide():
    squares = torch.tensor([[4.0, 16.0], [0.0, 1.0], [1.0, 0.0], [4.0, 16.0]]).double()
    scaled = torch.tensor([True, True, True, False])
    assert trust_ratio(squares, scaled).tolist() == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.multi
@pytest.mark.parametrize("ranks", BY_RANKS)
@pytest.mark.parametrize("ops", ["auto", "reference"])
def test_every_layout_equals_lamb_on_whole_tensors(world: World, ranks: int, ops: str) -> None:
    shapes = [{"shape": "gpt", "block": "serial"}, {"shape": "llama", "block": "parallel"}]
    cases = [
        {"optimizer": "lamb", "ops": ops, "layout": layout, "steps": STEPS, **shape}
        for layout in BY_RANKS[ranks]
        for shape in shapes
    ]
    assert recipe_of(cases[0]).optimizer.name == "lamb"
    first, *others = world.run("bench.case:train_all", ranks, cases)
    assert all(other == first for other in others), "ranks disagree"
    found = {
        str(case): worst(reference(case)[:STEPS], [tuple(step) for step in steps])
        for case, steps in zip(cases, first, strict=True)
    }
    assert all(error < FLOAT64_TOLERANCE for error in found.values()), found
