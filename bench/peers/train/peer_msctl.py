"""msctl on the shared workload: one row beside the peers.

    --tp --pp --vpp --dp --zero --schedule --group --run-ahead --tp-pieces --tp-halves --no-sp
    --no-overlap

Started by torchrun like the peers (or alone, world 1); prints one line `PEER {json}`.
"""

import argparse
import os

import torch
from workload import Clock, Workload, emit

from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.device import CpuDevice
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, OptimSpec, OverlapSpec, Recipe, ScheduleSpec, TrainSpec
from engine.train.build import build_engine, step_program
from engine.train.trainer import Batches, Trainer


def recipe_of(a: argparse.Namespace, w: Workload) -> Recipe:
    layout = ParallelLayout(
        tp=a.tp, pp=a.pp, vpp=a.vpp, dp=a.dp, zero=a.zero, sequence_parallel=not a.no_sp
    )
    model = ModelSpec(
        layers=w.layers, hidden=w.dim, heads=w.heads, ffn=w.ffn, vocab=w.vocab, seq=w.seq,
        norm="rmsnorm", activation="swiglu", position="rotary", bias=False, tied=False,
    )  # fmt: skip
    batch = BatchSpec(
        global_batch=w.micro_batch * w.micro_batches * a.dp, micro_batch=w.micro_batch
    )
    return Recipe(
        name="peer", model=model, batch=batch, layout=layout,
        overlap=OverlapSpec(
            tp=not a.no_overlap, pp=not a.no_overlap, dp=not a.no_overlap, tp_pieces=a.tp_pieces,
            tp_halves=a.tp_halves,
        ),
        schedule=ScheduleSpec(kind=a.schedule, group=a.group, run_ahead=a.run_ahead),
        optimizer=OptimSpec(lr=1e-3, min_lr=1e-3, decay="constant"),
        train=TrainSpec(steps=w.steps, deterministic=False),
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    ap = argparse.ArgumentParser()
    Workload.add_args(ap)
    for axis in ("tp", "pp", "vpp", "dp"):
        ap.add_argument(f"--{axis}", type=int, default=1)
    ap.add_argument("--zero", type=int, default=2)
    ap.add_argument("--schedule", default="auto")
    ap.add_argument("--group", type=int, default=0)
    ap.add_argument("--run-ahead", type=int, default=0)
    ap.add_argument("--tp-pieces", type=int, default=1)
    ap.add_argument("--tp-halves", action="store_true")
    ap.add_argument("--no-sp", action="store_true")
    ap.add_argument("--no-overlap", action="store_true")
    return ap


def join(rank: int, world: int) -> None:
    """Meet the other ranks, as torchrun and overlap_netns.sh start them."""
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    meet = Rendezvous(host, int(os.environ.get("MASTER_PORT", 29500)) + 1)
    start_world(rank, world, meet, backend="gloo", timeout_s=120)


def trainer_of(recipe: Recipe, rank: int) -> Trainer:
    """The engine for a recipe, with process groups of its own."""
    program = step_program(recipe)
    last = program.stage_of(program.chunks - 1)
    mesh = build_mesh(recipe.layout, rank, backend="gloo", timeout_s=120, last_stage=last)
    events = EventWriter(None, rank)
    return Trainer(recipe, build_engine(recipe, mesh, CpuDevice(), events), events)


def batches_of(w: Workload, replica: int) -> Batches:
    """Random tokens, the same for every system's layout of one replica."""
    generator = torch.Generator().manual_seed(1000 + replica)

    def batches(step: int) -> list[MicroBatch]:
        made = []
        for _ in range(w.micro_batches):
            x = torch.randint(w.vocab, (w.micro_batch, w.seq + 1), generator=generator).t()
            made.append(MicroBatch(x[:-1].contiguous(), x[1:].contiguous(), x[0], step))
        return made

    return batches


def main() -> None:
    a = parser().parse_args()
    w = Workload.from_args(a)
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", 0))
    recipe = recipe_of(a, w)
    layout = recipe.layout
    join(rank, layout.world_size)
    trainer = trainer_of(recipe, rank)
    batches = batches_of(w, layout.coord(rank).dp)
    clock, losses = Clock(), []
    for step in range(w.steps):
        with clock:
            losses.append(trainer.step(step, batches).loss)
    if rank == layout.world_size - 1:
        emit("msctl", w, layout.world_size, a.tp, a.pp, a.dp, clock, losses, str(a.vpp))
    end_world()


if __name__ == "__main__":
    main()
