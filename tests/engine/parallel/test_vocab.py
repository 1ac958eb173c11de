"""The divided vocabulary: loss and gradients where logits are extreme, and at the borders."""

import pytest
import torch
import torch.nn.functional as F

from bench.ranks import World
from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.parallel.tensor import TensorAxis
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from tests.engine.parallel.alone import axis_of, batch, chunk_of
from tests.engine.parallel.twins import numbers

SPEC = ModelSpec(layers=1, hidden=8, heads=2, vocab=16, seq=4, tied=False, position="none")
TOLERANCE = 1e-12


def head_loss(axis: TensorAxis, x: torch.Tensor, scale: float, targets: torch.Tensor):
    """Loss and input gradient of the head with its matrix blown up by `scale`."""
    made = chunk_of(SPEC, axis=axis)
    head = made.module.head
    head.weight.data.mul_(scale)
    x = x[slice(*axis.local_sequence(SPEC.seq))].clone().requires_grad_()
    micro = MicroBatch(targets, targets, torch.arange(2), 0)
    loss = head(x, None, micro)
    loss.backward()
    return loss.detach(), x.grad, head.weight.grad.clone()


def expected(x: torch.Tensor, scale: float, targets: torch.Tensor):
    made = chunk_of(SPEC)
    x, weight = x.clone().requires_grad_(), made.module.head.weight.data * scale
    weight.requires_grad_()
    normed = F.layer_norm(x, (SPEC.hidden,), eps=SPEC.norm_eps)
    loss = F.cross_entropy((normed @ weight.t()).flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    return loss.detach(), x.grad, weight.grad


@pytest.mark.parametrize("scale", [1.0, 1e5, 0.0])
def test_the_loss_is_torchs_however_large_the_logits(scale):
    x, targets = numbers(SPEC.seq, 2, SPEC.hidden), batch(SPEC).targets_sb
    for found, wanted in zip(
        head_loss(axis_of(), x, scale, targets), expected(x, scale, targets), strict=True
    ):
        assert torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_token_looked_up_twice_gets_both_gradients():
    made = chunk_of(SPEC)
    tokens = torch.tensor([[3, 3], [3, 5], [0, 15], [15, 0]])
    y = made.module.embed(MicroBatch(tokens, tokens, torch.arange(2), 0))
    y.backward(torch.ones_like(y))
    counts = made.module.embed.weight.grad[:, 0]
    assert counts.tolist() == [2, 0, 0, 3, 0, 1, *[0] * 9, 2]


def on_ranks(rank: int, meet: Rendezvous, args: dict) -> float:
    """Worst error with targets in one rank's rows alone, in the other's, and at the border."""
    layout = ParallelLayout(tp=2, sequence_parallel=args["sequence_parallel"])
    start_world(rank, 2, meet, backend="gloo", timeout_s=60)
    mesh = build_mesh(layout, rank, backend="gloo", timeout_s=60)
    axis = TensorAxis(
        mesh.tp, sequence_parallel=layout.sequence_parallel, events=EventWriter(None, rank)
    )
    worst = 0.0
    part = slice(*axis.local_sequence(SPEC.seq))
    rows = slice(rank * 8, rank * 8 + 8)
    for first, stop in ((0, 8), (8, 16), (7, 9)):
        targets = torch.arange(8).reshape(4, 2) % (stop - first) + first
        for scale in (1.0, 1e4):
            x = numbers(SPEC.seq, 2, SPEC.hidden, seed=stop)
            loss, dx, dw = head_loss(axis, x, scale, targets)
            wanted = expected(x, scale, targets)
            pairs = ((loss, wanted[0]), (dx, wanted[1][part]), (dw, wanted[2][rows]))
            for a, b in pairs:
                worst = max(worst, float((a - b).abs().max()) / max(1.0, float(b.abs().max())))
    end_world()
    return worst


@pytest.mark.multi
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_targets_may_lie_on_any_rank(world: World, sequence_parallel):
    found = world.run(f"{__name__}:on_ranks", 2, {"sequence_parallel": sequence_parallel})
    assert max(found) < TOLERANCE
