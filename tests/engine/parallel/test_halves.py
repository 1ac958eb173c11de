"""Halves of a micro-batch: the plain model's numbers, and sums that travel while others compute.

That several ranks agree with the plain model is in `tests/engine/train/test_trainer.py`.
"""

import pytest
import torch

from engine.model.transformer import set_recompute
from engine.parallel.apply import Placement, parallelize
from engine.parallel.tensor import TensorAxis
from engine.spec.model import ModelSpec
from tests.engine.parallel.alone import CPU, SEED, axis_of, batch
from tests.engine.parallel.twins import SHAPES

SPEC = {"layers": 3, "hidden": 16, "heads": 4, "vocab": 32, "seq": 8, "ffn": 24}


def made(spec: ModelSpec, halves_ahead: bool | None, axis: TensorAxis | None = None):
    place = Placement(dtype=torch.float64, device=CPU, dp=1, seed=SEED, share_tied=False,
                      halves_ahead=halves_ahead)  # fmt: skip
    return parallelize(spec, range(spec.layers), (True, True), axis or axis_of(), place)


def run(chunk, spec: ModelSpec, size: int = 4) -> tuple[float, torch.Tensor]:
    loss = chunk.module(None, batch(spec, size))
    loss.backward()
    return float(loss.detach()), chunk.flat.grad.clone()


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("shape", SHAPES)
def test_halves_have_the_loss_and_gradients_of_the_whole(shape, recompute):
    spec = ModelSpec(**SPEC, **SHAPES[shape], dropout=0.2)
    whole, halves = made(spec, None), made(spec, True)
    set_recompute(halves.module, recompute)
    (loss, grad), (other_loss, other_grad) = run(whole, spec), run(halves, spec)
    assert other_loss == pytest.approx(loss, rel=1e-13)
    torch.testing.assert_close(other_grad, grad, rtol=1e-10, atol=1e-13)


def test_validation_keeps_nothing_and_computes_the_same():
    spec = ModelSpec(**SPEC)
    with torch.no_grad():
        micro = batch(spec, 2)
        assert made(spec, True).module(None, micro) == made(spec, None).module(None, micro)


class Recorder(TensorAxis):
    """One rank that pretends that its sums take time: notes when they start and are waited for."""

    def __init__(self) -> None:
        alone = axis_of()
        super().__init__(alone.group, sequence_parallel=False, events=alone._events)
        self.order: list[str] = []
        self.started = 0

    def start_leave_matmul(self, pairs):
        out, _ = super().start_leave_matmul(pairs)
        self.started += 1
        self.order.append(f"start {self.started}")
        return out, [(out, self.started)]  # type: ignore[list-item] # a number for a work

    def finish(self, pending):
        self.order += [f"wait {number}" for _, number in pending if isinstance(number, int)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_sum_is_waited_for_when_the_other_half_has_computed(ahead):
    axis = Recorder()
    spec = ModelSpec(**SPEC)
    run(made(spec, ahead, axis), spec)
    sums = 2 * 2 * 2 * spec.layers  # halves, directions, sublayers
    starts = [axis.order.index(f"start {n}") for n in range(1, sums + 1)]
    waits = [axis.order.index(f"wait {n}") for n in range(1, sums + 1)]
    assert len(axis.order) == 2 * sums, "every sum is waited for once"
    distance = {wait - start for start, wait in zip(starts, waits, strict=True)}
    assert all(d > 0 for d in distance)
    if not ahead:
        assert distance == {1}, "at once"
        return
    half = sums // 2
    last = {half - 2, half - 1, sums - 2, sums - 1}  # nothing comes after these in a direction
    for n in set(range(sums - 1)) - last:
        between = axis.order[starts[n] + 1 : waits[n]]
        assert f"start {n + 2}" in between, "the other half's sublayer runs while the sum travels"
