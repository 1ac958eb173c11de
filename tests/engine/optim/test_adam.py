"""AdamW on a shard against torch's own, wherever the runs of decay are cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.optim.adam import ShardAdamW
from engine.spec.recipe import OptimSpec

TOLERANCE = 1e-13
SPEC = OptimSpec(lr=1e-2, weight_decay=0.3, beta1=0.8, beta2=0.95, eps=1e-7)
STEPS = 5


def numbers(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).double()


def rate(step: int) -> float:
    return SPEC.lr / (step + 1)


def reference(n: int, decayed: list[tuple[int, int]]) -> torch.Tensor:
    """Every element a parameter of its own in torch.optim.AdamW, neither fused nor foreach."""
    inside = [any(a <= i < b for a, b in decayed) for i in range(n)]
    elements = [x.clone().reshape(1).requires_grad_() for x in numbers(n, 0)]
    groups = [
        {"params": [e for e, d in zip(elements, inside, strict=True) if d == decay],
         "weight_decay": SPEC.weight_decay if decay else 0.0}
        for decay in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]], betas=(SPEC.beta1, SPEC.beta2), eps=SPEC.eps,
        foreach=False, fused=False,
    )  # fmt: skip
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        for element, g in zip(elements, numbers(n, step + 1), strict=True):
            element.grad = g.reshape(1).clone()
        optimizer.step()
    return torch.cat([e.detach() for e in elements])


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A length and sorted disjoint runs in it."""
    n = draw(st.integers(1, 24))
    ends = sorted(draw(st.sets(st.integers(0, n), max_size=6)))
    return n, [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=False) if a < b]


@given(cuts())
@settings(max_examples=40, deadline=None)
def test_equals_torchs_adamw_wherever_decay_begins_and_ends(cut):
    n, decayed = cut
    master = numbers(n, 0)
    optimizer = ShardAdamW(SPEC, master, decayed)
    for step in range(STEPS):
        optimizer.step(numbers(n, step + 1), lr=rate(step), update=step)
    assert float((master - reference(n, decayed)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_shards_move_as_the_whole_does(parts):
    n, decayed = 24, [(0, 10), (17, 24)]
    whole = numbers(n, 0)
    pieces = list(numbers(n, 0).chunk(parts))
    size = n // parts
    optimizers = [ShardAdamW(SPEC, whole, decayed)]
    for i, piece in enumerate(pieces):
        begin, end = i * size, (i + 1) * size
        inside = [(max(a, begin) - begin, min(b, end) - begin) for a, b in decayed]
        optimizers.append(ShardAdamW(SPEC, piece, [(a, b) for a, b in inside if a < b]))
    for step in range(STEPS):
        grad = numbers(n, step + 1)
        optimizers[0].step(grad, lr=1e-2, update=step)
        for optimizer, part in zip(optimizers[1:], grad.chunk(parts), strict=True):
            optimizer.step(part, lr=1e-2, update=step)
    assert torch.equal(torch.cat(pieces), whole)


def test_state_of_a_checkpoint_continues_bitwise():
    """A fresh optimizer that is given master and moments goes on as if nothing had happened."""
    decayed = [(3, 9)]
    first = ShardAdamW(SPEC, numbers(12, 0), decayed)
    for step in range(3):
        first.step(numbers(12, step + 1), lr=1e-2, update=step)
    second = ShardAdamW(SPEC, first.master.clone(), decayed)
    for slot in first.slots:
        second.state[slot].copy_(first.state[slot])
    for optimizer in (first, second):
        optimizer.step(numbers(12, 4), lr=1e-2, update=3)
    assert torch.equal(first.master, second.master)


def test_the_first_update_moves_by_the_rate():
    """Bias correction: with any gradient g, m / sqrt(v) = sign(g) at update 0."""
    master = torch.zeros(4, dtype=torch.float64)
    grad = torch.tensor([3.0, -1e-3, 50.0, -7.0], dtype=torch.float64)
    ShardAdamW(SPEC, master, []).step(grad, lr=0.01, update=0)
    assert torch.allclose(master, -0.01 * grad.sign(), rtol=1e-3)


def test_master_is_updated_where_it_lies_and_gradients_stay():
    buffer = torch.ones(10)
    grad = torch.full((4,), 2.0)
    optimizer = ShardAdamW(SPEC, buffer[3:7], [(0, 2)])
    optimizer.step(grad, lr=0.1, update=0)
    assert torch.equal(buffer[:3], torch.ones(3))
    assert torch.equal(buffer[7:], torch.ones(3))
    assert bool((buffer[3:7] < 1).all())
    assert torch.equal(grad, torch.full((4,), 2.0))


def test_an_empty_shard_has_nothing_to_do():
    optimizer = ShardAdamW(SPEC, torch.empty(0), [])
    optimizer.step(torch.empty(0), lr=0.1, update=0)
    assert optimizer.master.numel() == 0
