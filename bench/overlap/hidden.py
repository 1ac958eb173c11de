"""How much of its communication the engine hides, and whether the simulator says so beforehand.

    N=2 PY=python RATE=100mbit SCRIPT=$PWD/hidden.py ./overlap_netns.sh [--rate 100] [--real]

Each rank stands behind a limited link, so that a transfer costs wire time and not CPU time. The
engine runs its real step: program, flat buffers, reductions, optimizer. Only the inside of a chunk
is replaced, by a wait as long as a device would work (`--real`: by matrix products as long): this
measures the engine's order of things and not the machine's two cores.

    alone    the step without transfers. With data parallelism: measured, the same step with
             collectives that do nothing, in turn with the others; it begins with loading data, as
             long as a chunk's gather: the first gather hides behind that. With pipelines, where
             ranks would not wait for each other then: by the simulator, with what the host adds to
             each action
    wire     bytes of a rank over its link
    hidden   1 - (step - alone) / wire; a device computes --ratio times as long as its wire is busy
    cpu      processor time of all threads of a rank in a step, beyond that of the step alone: where
             ranks compute on all cores (--real), at least this share of the wire cannot be hidden
    said     the simulator's step, transfers of a rank sharing one link

Tensor parallelism is measured on its own GEMM (`Chunker`, alone without its transfers), against
theory 1 - 1 / pieces. Prints a line per case; exit 1 if a case is below its bar or the simulator is
off by more than 10 %.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.comm.collectives import DONE, Group, all_gather, all_reduce, barrier, reduce_scatter
from engine.comm.mesh import Mesh, build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.device import CpuDevice
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.parallel import chunked, zero
from engine.schedule.action import SENDS, Action, Kind
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import LANES, simulate
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, OptimSpec, OverlapSpec, Recipe, ScheduleSpec, TrainSpec
from engine.train.build import build_engine, step_program
from engine.train.trainer import Trainer

Work = Callable[[float], None]
ONE_LINK = dict.fromkeys(LANES, "link")
WARMUP, STEPS = 1, 5


def sleep(seconds: float) -> None:
    time.sleep(seconds)


class Burner:
    """Computes for a given time on this thread."""

    def __init__(self) -> None:
        self._m = torch.randn(128, 128)
        start = time.perf_counter()
        self._turns(400)
        self._each_s = (time.perf_counter() - start) / 400

    def _turns(self, count: int) -> None:
        x = self._m
        for _ in range(count):
            x = torch.mm(x, self._m).clamp_(-1, 1)

    def __call__(self, seconds: float) -> None:
        self._turns(max(1, round(seconds / self._each_s)))


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Work, forward_s: float) -> Tensor:
        ctx.work, ctx.forward_s = work, forward_s
        work(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        ctx.work(2 * ctx.forward_s)
        return dy, None, None


class TimedChunk(nn.Module):
    """Takes the time of a chunk and hands on a tensor of the stream's shape; the last one a sum."""

    def __init__(self, shape: tuple[int, ...], is_last: bool, work: Work, forward_s: float) -> None:
        super().__init__()
        self.shape, self.is_last, self.work, self.forward_s = shape, is_last, work, forward_s

    def forward(self, x: Tensor | None, micro: MicroBatch) -> Tensor:
        start = x if x is not None else torch.zeros(self.shape, requires_grad=True)
        out: Tensor = _Timed.apply(start, self.work, self.forward_s)
        return out.sum() if self.is_last else out


def recipe_of(
    layout: ParallelLayout, *, kind: str, group: int, m: int, overlap: bool, hidden: int = 64
) -> Recipe:
    """At hidden 64 about 3 MiB of parameters in chunks alike, and 128 KiB a message."""
    model = ModelSpec(
        layers=16, hidden=hidden, heads=4, ffn=4 * hidden, vocab=256, seq=128, tied=False,
        position="rotary",
    )  # fmt: skip
    return Recipe(
        name="hidden", model=model, layout=layout,
        batch=BatchSpec(global_batch=m * 4 * layout.dp, micro_batch=4),
        schedule=ScheduleSpec(kind=kind, group=group),  # type: ignore[arg-type]
        overlap=OverlapSpec(pp=overlap, dp=overlap),
        optimizer=OptimSpec(clip_norm=0.0), train=TrainSpec(threads=1),
    )  # fmt: skip


class Taken(NamedTuple):
    """Seconds of a step and of its rank's processor time."""

    step_s: float
    cpu_s: float


class Case:
    """One layout on the ranks of this world."""

    def __init__(
        self, rank: int, mesh: Mesh, recipe: Recipe, work: Work, rate: float, ratio: float,
        own_s: float = 0.0, forward_s: float = 0.0,
    ) -> None:  # fmt: skip
        """own_s: what an action costs beyond the device's time, by `overhead_s`."""
        self.recipe, self.rate, self.rank, self.own_s = recipe, rate, rank, own_s
        self.program: Schedule = step_program(recipe)
        events = EventWriter(None, rank)
        engine = build_engine(recipe, mesh._replace(layout=recipe.layout), CpuDevice(), events)
        self.trainer = Trainer(recipe, engine, events)
        self.message_bytes = 4 * 128 * 4 * recipe.model.hidden
        chunks, m = self.program.chunks, self.program.microbatches
        own = {n: unit.shard.flat.padded * 4 for n, unit in engine.units.items()}
        self.chunk_bytes = dict.fromkeys(range(chunks), max(own.values())) | own
        per_rank = chunks // recipe.layout.pp * m
        self.wire_s = max(self._wire_s(stage) for stage in range(recipe.layout.pp))
        self.forward_s = forward_s or ratio * self.wire_s / (3 * per_rank)
        is_gathered = recipe.layout.dp > 1
        self.load_s = self.duration_s(Action(Kind.UNSHARD, 0)) if is_gathered else 0.0
        for number in engine.stage.chunks:
            shape = engine.stage.stream_shape
            engine.stage.chunks[number] = TimedChunk(
                shape, number == chunks - 1, work, self.forward_s
            )

    def _wire_s(self, stage: int) -> float:
        actions = self.program.stages[stage]
        if self.recipe.layout.dp == 1:
            actions = tuple(a for a in actions if a.kind in SENDS)
        return sum(self.duration_s(a) for a in actions if a.kind in LANES and a.kind not in _RECVS)

    def duration_s(self, action: Action) -> float:
        """Of computing or of the wire."""
        if action.kind in SENDS:
            return self.message_bytes / self.rate
        dp = self.recipe.layout.dp
        if action.kind in (Kind.UNSHARD, Kind.REDUCE_GRAD):
            if dp == 1:
                return 0.0
            return self.chunk_bytes[action.chunk] * (dp - 1) / dp / self.rate
        times = {Kind.FORWARD: 1, Kind.BACKWARD: 2}.get(action.kind, 1)
        return self.own_s + self.forward_s * times

    def said_s(self, *, transfers: bool) -> float:
        """The simulator's step; without transfers they take no time."""
        first = next((a for a in self.program.stages[0] if a.kind is Kind.UNSHARD), None)

        def duration_s(action: Action) -> float:
            is_wire = action.kind in LANES
            free = action == first or not transfers
            return 0.0 if is_wire and free else self.duration_s(action)

        return self.load_s + simulate(self.program, duration_s, lanes=ONE_LINK).makespan_s

    def step(self, number: int) -> Taken:
        """One step, all ranks beginning together."""
        batch = self.recipe.batch
        tokens = torch.zeros((128, batch.micro_batch), dtype=torch.int64)
        micro = MicroBatch(tokens, tokens, torch.zeros(batch.micro_batch, dtype=torch.int64), 0)
        count = batch.microbatches(self.recipe.layout)

        def load(step: int) -> list[MicroBatch]:
            time.sleep(self.load_s)
            return [micro] * count

        barrier(self.trainer.engine.mesh.world)
        cpu = time.process_time()
        step_s = self.trainer.step(number, load).step_s
        return Taken(step_s, time.process_time() - cpu)


def medians(cases: dict[str, Case]) -> dict[str, Taken]:
    """Medians of each case's steps, taken in turn; the case `alone` without collectives."""
    taken: dict[str, list[Taken]] = {way: [] for way in cases}
    for step in range(WARMUP + STEPS):
        for way, case in cases.items():
            with without_collectives() if way == "alone" else contextlib.nullcontext():
                taken[way].append(case.step(step))
    return {
        way: Taken(*map(statistics.median, zip(*found[WARMUP:], strict=True)))
        for way, found in taken.items()
    }


def _zeros(out: Tensor, *_: object, **__: object) -> Any:
    """Nothing arrives, but what is there can be computed with."""
    out.zero_()
    return DONE


@contextlib.contextmanager
def without_collectives() -> Iterator[None]:
    """Gathers and reductions of data parallelism that do nothing."""
    names = ("all_gather", "all_reduce", "reduce_scatter")
    real = {name: getattr(zero, name) for name in names}
    try:
        for name in names:
            setattr(zero, name, _zeros)
        yield
    finally:
        for name, call in real.items():
            setattr(zero, name, call)


_RECVS = (Kind.RECV_F, Kind.RECV_B)


def overhead_s(rank: int, mesh: Mesh, work: Work, rate: float) -> float:
    """What the host adds to an action: of a step whose transfers are next to nothing.

    A device would run behind its host; a rank that waits in its place cannot, so this is part of
    computing here.
    """
    layout, forward_s = ParallelLayout(dp=2, vpp=8), 0.006
    recipe = recipe_of(layout, kind="breadth-first", group=0, m=4, overlap=True, hidden=8)
    case = Case(rank, mesh, recipe, work, rate, 1.0, forward_s=forward_s)
    actions = 2 * case.program.chunks * case.program.microbatches
    return (medians({"on": case})["on"].step_s - case.said_s(transfers=False)) / actions


def mean_s(seconds: float, mesh: Mesh) -> float:
    """The mean over all ranks."""
    total = torch.tensor([seconds], dtype=torch.float64)
    all_reduce(total, mesh.world).wait()
    return float(total) / mesh.world.size


def whole_steps(rank: int, work: Work, rate: float, ratio: float) -> bool:
    """Data and pipeline parallel steps; True if all bars are met."""
    cases = [
        ("dp 2, 8 chunks", ParallelLayout(dp=2, vpp=8), "breadth-first", 0, 4, 1 - 1 / 16 - 0.05),
        ("dp 2, 16 chunks", ParallelLayout(dp=2, vpp=16), "breadth-first", 0, 4, 0.9),
        ("pp 2, 1f1b", ParallelLayout(pp=2), "1f1b", 0, 16, None),
        ("pp 2, v 2", ParallelLayout(pp=2, vpp=2), "interleaved", 0, 16, None),
        ("pp 2, v 2, group 4", ParallelLayout(pp=2, vpp=2), "interleaved", 4, 16, None),
        ("pp 2, v 2, group 8", ParallelLayout(pp=2, vpp=2), "interleaved", 8, 32, 0.9),
    ]
    layout = ParallelLayout(dp=2, vpp=8)
    mesh = build_mesh(layout, rank, backend="gloo", timeout_s=120)
    meshes: dict[tuple[int, ...], Mesh] = {(1, 2, True): mesh}
    own_s = mean_s(overhead_s(rank, mesh, work, rate), mesh)
    if rank == 0:
        print(f"an action costs {1e3 * own_s:.2f} ms beside its device's time")
    good = True
    for name, layout, kind, group, m, bar in cases:
        key = (layout.pp, layout.dp, layout.vpp > 1)
        if key not in meshes:
            meshes[key] = build_mesh(layout, rank, backend="gloo", timeout_s=120)
        rows = {}
        for way in ("on", "off") if layout.dp == 1 else ("on", "off", "alone"):
            recipe = recipe_of(layout, kind=kind, group=group, m=m, overlap=way != "off")
            rows[way] = Case(rank, meshes[key], recipe, work, rate, ratio, own_s)
        case, took = rows["on"], medians(rows)
        on_s, off_s = took["on"].step_s, took["off"].step_s
        alone_s, said_s = case.said_s(transfers=False), case.said_s(transfers=True)
        cpu = ""
        if "alone" in took:
            said_s += took["alone"].step_s - alone_s  # computing is what was measured
            alone_s = took["alone"].step_s
            cpu = f"  cpu {1e3 * (took['on'].cpu_s - took['alone'].cpu_s):.0f}"
        hidden = 1 - (on_s - alone_s) / case.wire_s
        can_hide = 1 - (said_s - alone_s) / case.wire_s
        good = good and (bar is None or hidden >= bar) and abs(on_s / said_s - 1) <= 0.1
        if rank == 0:
            print(
                f"{name:22} wire {1e3 * case.wire_s:5.0f} ms  alone {1e3 * alone_s:5.0f}  "
                f"off {1e3 * off_s:5.0f}  on {1e3 * on_s:5.0f}  said {1e3 * said_s:5.0f} "
                f"({100 * (on_s / said_s - 1):+.1f} %)  hidden {hidden:.2f}, by the simulator "
                f"{can_hide:.2f}{cpu}" + (f", bar {bar:.2f}" if bar else ""), flush=True,
            )  # fmt: skip
    return good


class Products:
    """Stands in for torch inside `Chunker`: a product takes its share of a GEMM's time."""

    def __init__(self, work: Work, seconds: float, rows: int) -> None:
        self._work, self._each_s = work, seconds / rows

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def matmul(self, x: Tensor, weight_t: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        self._work(self._each_s * rows)
        return x.new_zeros((*x.shape[:-1], weight_t.shape[1]))


def tensor_parallel(rank: int, world: int, work: Work) -> bool:
    """GEMMs in pieces, column (gather first) and row (scatter after); True if the bars are met."""
    group = build_mesh(ParallelLayout(tp=world), rank, backend="gloo", timeout_s=120).tp
    s, b, h = 1024, 2, 512
    part = torch.zeros((s // world, b, h))
    whole = torch.zeros((s, b, h))
    weight_t = torch.zeros((h, h))
    good = True
    for op in ("gather", "scatter"):
        wire_s = statistics.median(_alone_s(op, group, part, whole) for _ in range(3))
        for pieces in (4, 8):
            chunked.torch = Products(work, wire_s, s * b)  # type: ignore[attr-defined]
            times = {}
            for way in ("on", "off", "alone"):
                chunker = chunked.Chunker(
                    group, pieces=pieces, ahead=way != "off", events=EventWriter(None, rank)
                )
                for name, call in (("all_gather", all_gather), ("reduce_scatter", reduce_scatter)):
                    done = (lambda *parts, **ways: DONE) if way == "alone" else call
                    setattr(chunked, name, done)

                def once(chunker: chunked.Chunker = chunker, op: str = op) -> None:
                    if op == "gather":
                        chunker.gather_matmul(part, [weight_t])
                    else:
                        chunker.finish(chunker.start_matmul_scatter([(whole, weight_t)])[1])

                times[way] = statistics.median(_timed_s(once, group) for _ in range(7))
            hidden = 1 - (times["on"] - times["alone"]) / wire_s
            theory = 1 - 1 / pieces
            good = good and hidden >= 0.85 * theory
            if rank == 0:
                print(
                    f"tp {world} {op:8} {pieces} pieces  wire {1e3 * wire_s:5.0f} ms  alone "
                    f"{1e3 * times['alone']:5.0f}  off {1e3 * times['off']:5.0f}  "
                    f"on {1e3 * times['on']:5.0f}  "
                    f"hidden {hidden:.2f} of {theory:.3f}, bar {0.85 * theory:.2f}", flush=True,
                )  # fmt: skip
    return good


def _timed_s(call: Callable[[], None], group: Group) -> float:
    barrier(group)
    start = time.perf_counter()
    call()
    barrier(group)  # a step is its slowest rank
    return time.perf_counter() - start


def _alone_s(op: str, group: Group, part: Tensor, whole: Tensor) -> float:
    if op == "gather":
        return _timed_s(lambda: all_gather(whole, part, group).wait(), group)
    return _timed_s(lambda: reduce_scatter(part, whole, group).wait(), group)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--rate", type=float, default=100.0, help="Mbit/s of a link, as given to RATE")
    ap.add_argument("--ratio", type=float, default=2.0, help="compute over wire of whole steps")
    ap.add_argument("--real", action="store_true", help="compute instead of waiting")
    a = ap.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet = Rendezvous(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    start_world(rank, world, meet, backend="gloo", timeout_s=120)
    work: Work = Burner() if a.real else sleep
    rate = a.rate * 1e6 / 8 * 0.955  # what is left of a link under TCP and Ethernet headers
    good = whole_steps(rank, work, rate, a.ratio)
    good = tensor_parallel(rank, world, work) and good
    end_world()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
