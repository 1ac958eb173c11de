"""Twins against plain modules: outputs and all gradients, alone and on several ranks."""

import pytest
import torch

from bench.ranks import World
from engine.parallel.tensor import add_outer
from tests.engine.parallel.alone import axis_of, batch, chunk_of
from tests.engine.parallel.twins import SHAPES, errors, numbers, on_ranks, spec_of

TOLERANCE = 1e-12


@pytest.mark.parametrize("shape", SHAPES)
def test_alone_every_twin_computes_what_its_module_does(shape):
    found = errors(shape, axis_of())
    assert any(name.endswith(".into") for name in found)
    assert any("gradient of" in name for name in found)
    assert max(found.values()) < TOLERANCE, max(found, key=lambda key: found[key])


@pytest.mark.multi
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_two_ranks_compute_their_parts_of_it(world: World, sequence_parallel):
    args = {"tp": 2, "sequence_parallel": sequence_parallel}
    for found in world.run(f"{on_ranks.__module__}:on_ranks", 2, args):
        assert max(found.values()) < TOLERANCE, found


@pytest.mark.multi
def test_four_ranks_compute_their_parts_of_it(world: World):
    args = {"tp": 4, "sequence_parallel": True}
    for found in world.run(f"{on_ranks.__module__}:on_ranks", 4, args):
        assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradients_are_summed_in_float32(dtype):
    dy, x = numbers(6, 3).to(dtype), numbers(6, 4, seed=1).to(dtype)
    grad = torch.full((3, 4), 1e-3)
    add_outer(grad, dy, x)
    exact = 1e-3 + dy.double().t() @ x.double()
    assert torch.allclose(grad.double(), exact, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert grad.dtype == torch.float32


def test_gradients_accumulate_over_micro_batches():
    spec = spec_of("gpt")
    made = chunk_of(spec)
    for step in (0, 1):
        made.module(None, batch(spec, step=step)).backward()
    both = made.flat.grad.clone()
    made.flat.clear_grad(keep=True)
    alone = []
    for step in (0, 1):
        made.module(None, batch(spec, step=step)).backward()
        alone.append(made.flat.grad.clone())
        made.flat.clear_grad(keep=True)
    assert torch.allclose(both, alone[0] + alone[1], atol=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES)
def test_owed_weight_gradients_are_those_of_a_whole_backward(shape):
    """The split backward: input gradients first, weight gradients later, the same numbers."""
    spec = spec_of(shape)
    whole = chunk_of(spec)
    whole.module(None, batch(spec)).backward()
    axis = axis_of()
    split = chunk_of(spec, axis=axis)
    with axis.owing() as owed:
        split.module(None, batch(spec)).backward()
    assert owed, "matrices wait for their gradients"
    matrix = next(w for w in split.flat.weights if w.info.name.endswith("o.weight"))
    assert not bool(matrix.grad.any())
    with torch.no_grad():
        for job in owed:
            job()
    if spec.tied:  # embedding and head add to one matrix, now in the other order
        assert torch.allclose(split.flat.grad, whole.flat.grad, atol=TOLERANCE)
    else:
        assert torch.equal(split.flat.grad, whole.flat.grad)


def test_parts_of_the_sequence_cover_it():
    assert axis_of().local_sequence(8) == (0, 8)
    assert [axis_of(i, 4).local_sequence(8) for i in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert axis_of(1, 4, sequence_parallel=False).local_sequence(8) == (0, 8)


def test_half_precision_twins_stay_near_the_exact_model():
    """bfloat16 keeps 8 bits: loss and gradient agree with float64 to a few of its roundings."""
    spec = spec_of("llama")
    exact, half = chunk_of(spec), chunk_of(spec, dtype=torch.bfloat16)
    losses = []
    for made in (exact, half):
        loss = made.module(None, batch(spec))
        loss.backward()
        losses.append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=2**-7)
    error = (half.flat.grad.double() - exact.flat.grad).norm() / exact.flat.grad.norm()
    assert float(error) < 2**-4
