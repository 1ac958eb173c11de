"""All three dimensions at once behind limited links: tp 2, pp 2, vpp 2, dp 2 on eight ranks.

    N=8 PY=python RATE=100mbit SCRIPT=$PWD/three.py ./overlap_netns.sh [--rate 100]

As `hidden.py`, with tensor parallelism inside the chunks: forward and backward gather what a first
product takes and scatter what a second one gives, in pieces, through the engine's own `Chunker`.
The simulator is told that a chunk takes its device's time and the one piece of each exchange that
no product covers. Prints one line; exit 1 if it is off by more than 12 %.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.overlap.hidden import Case, Products, mean_s, medians, recipe_of, sleep
from engine.comm.mesh import Mesh, build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.parallel import chunked
from engine.schedule.action import Action, Kind
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, vpp=2, dp=2)
PIECES, MICROBATCHES, BOUND = 4, 8, 0.12

Layer = Callable[[Tensor, float], Tensor]
"""(part of the sequence, seconds of the device) -> part of the sequence."""


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, forward_s: float) -> Tensor:
        ctx.layer, ctx.forward_s = layer, forward_s
        return layer(x.detach(), forward_s)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return ctx.layer(dy, 2 * ctx.forward_s), None, None


class Exchanging(nn.Module):
    """Takes a chunk's time, and has the traffic of one layer's column and row products."""

    def __init__(self, shape: tuple[int, ...], is_last: bool, layer: Layer, forward_s: float):
        super().__init__()
        self.shape, self.is_last, self.layer, self.forward_s = shape, is_last, layer, forward_s

    def forward(self, x: Tensor | None, micro: MicroBatch) -> Tensor:
        start = x if x is not None else torch.zeros(self.shape, requires_grad=True)
        out: Tensor = _Step.apply(start, self.layer, self.forward_s)
        return out.sum() if self.is_last else out


def layer_of(mesh: Mesh, rank: int, *, ahead: bool) -> Layer:
    """A gather with its product and a product with its scatter, each half of the time."""
    chunker = chunked.Chunker(mesh.tp, pieces=PIECES, ahead=ahead, events=EventWriter(None, rank))

    def layer(part: Tensor, seconds: float) -> Tensor:
        s, b, h = part.shape
        rows, weight_t = s * mesh.tp.size * b, torch.zeros((h, h))
        chunked.torch = Products(sleep, seconds / 2, rows)  # type: ignore[attr-defined]
        _, whole = chunker.gather_matmul(part, [weight_t])
        out, pending = chunker.start_matmul_scatter([(whole, weight_t)])
        chunker.finish(pending)
        return out

    return layer


class ThreeCase(Case):
    """`Case` whose chunks exchange parts of the sequence."""

    def __init__(
        self, rank: int, mesh: Mesh, rate: float, forward_s: float, own_s: float, *, overlap: bool,
        hidden: int,
    ) -> None:  # fmt: skip
        recipe = recipe_of(
            LAYOUT, kind="interleaved", group=4, m=MICROBATCHES, overlap=overlap, hidden=hidden
        )
        super().__init__(rank, mesh, recipe, sleep, rate, 1.0, own_s, forward_s=forward_s)
        engine, self.overlap = self.trainer.engine, overlap
        self.message_bytes //= LAYOUT.tp
        self.exchange_s = self.message_bytes / rate  # what a rank of two sends of its part
        layer = layer_of(mesh, rank, ahead=overlap)
        for number in engine.stage.chunks:
            is_last = number == self.program.chunks - 1
            shape = engine.stage.stream_shape
            engine.stage.chunks[number] = Exchanging(shape, is_last, layer, forward_s)

    def duration_s(self, action: Action) -> float:
        seconds = super().duration_s(action)
        if action.kind in (Kind.FORWARD, Kind.BACKWARD):
            seconds += 2 * getattr(self, "exchange_s", 0.0) / PIECES
        return seconds

    def tp_wire_s(self) -> float:
        """Of a rank in a step."""
        chunks = self.program.chunks // LAYOUT.pp
        return 4 * chunks * self.program.microbatches * self.exchange_s


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--rate", type=float, default=100.0, help="Mbit/s of a link, as given to RATE")
    ap.add_argument("--ratio", type=float, default=2.0, help="compute over wire")
    a = ap.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet = Rendezvous(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    start_world(rank, world, meet, backend="gloo", timeout_s=120)
    mesh = build_mesh(LAYOUT, rank, backend="gloo", timeout_s=120)
    rate = a.rate * 1e6 / 8 * 0.955  # what is left of a link under TCP and Ethernet headers

    def case_of(forward_s: float, own_s: float, *, overlap: bool, hidden: int) -> ThreeCase:
        return ThreeCase(rank, mesh, rate, forward_s, own_s, overlap=overlap, hidden=hidden)

    case = case_of(1.0, 0.0, overlap=True, hidden=64)
    per_rank = 2 * case.program.chunks // LAYOUT.pp * MICROBATCHES
    wire_s = mean_s(case.wire_s, mesh) + case.tp_wire_s()
    forward_s = a.ratio * wire_s / (3 * per_rank / 2)
    # The same step with next to no bytes: what the host adds to an action that exchanges.
    small = case_of(forward_s, 0.0, overlap=True, hidden=8)
    small_s = medians({"on": small})["on"].step_s
    own_s = mean_s((small_s - small.said_s(transfers=False)) / per_rank, mesh)
    cases = {
        way: case_of(forward_s, own_s, overlap=way == "on", hidden=64) for way in ("on", "off")
    }
    case, took = cases["on"], medians(dict(cases))
    on_s, off_s = took["on"].step_s, took["off"].step_s
    said_s = case.said_s(transfers=True)
    if rank == 0:
        print(
            f"tp 2, pp 2, vpp 2, dp 2  wire {1e3 * wire_s:.0f} ms (tp {1e3 * case.tp_wire_s():.0f})"
            f"  an action costs {1e3 * own_s:.1f} ms more  off {1e3 * off_s:.0f}  on "
            f"{1e3 * on_s:.0f}  said {1e3 * said_s:.0f} ({100 * (on_s / said_s - 1):+.1f} %)"
        )  # fmt: skip
    end_world()
    return 0 if abs(on_s / said_s - 1) <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
