"""A whole run of one rank in this process: no groups, no nursery, synthetic data."""

import gc
import os
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.device import CpuDevice
from engine.events.writer import EventWriter
from engine.spec.job import JobSpec
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import (
    BatchSpec,
    CkptSpec,
    DataSpec,
    MonitorSpec,
    OptimSpec,
    Recipe,
    TrainSpec,
)
from engine.train.build import Engine, build_engine
from engine.train.loop import Loop
from engine.train.metrics import StepMetrics, read_metrics
from engine.train.task import RankTask
from engine.train.trainer import Trainer
from tests.engine.parallel.alone import mesh_of


def recipe(**sections: dict[str, Any]) -> Recipe:
    """A tiny recipe; sections are merged over the ones below."""
    base: dict[str, Any] = {
        "model": ModelSpec(layers=2, hidden=16, heads=2, vocab=32, seq=8),
        "batch": BatchSpec(global_batch=4, micro_batch=2),
        "optimizer": OptimSpec(lr=1e-2, min_lr=1e-3),
        "data": DataSpec(format="synthetic"),
        "train": TrainSpec(steps=6, device="cpu", eval_batches=1, ops="reference", threads=1),
        "checkpoint": CkptSpec(two_stage=False),
        "monitor": MonitorSpec(tensorboard=False, events=False),
        "job": JobSpec(),
    }
    for name, changes in sections.items():
        base[name] = msgspec.structs.replace(base[name], **changes)
    return Recipe(name="single", seed=5, **base)


def engine_of(made: Recipe, layout: ParallelLayout | None = None, rank: int = 0) -> Engine:
    """A rank's engine; with more than one rank it cannot communicate, only be looked at."""
    layout = layout or ParallelLayout()
    made = msgspec.structs.replace(made, layout=layout)
    return build_engine(made, mesh_of(layout, rank), CpuDevice(), EventWriter(None, rank))


def loop_of(folder: Path, made: Recipe, *, steps: int = 0, resume: str = "auto") -> Loop:
    """The loop of a run in `folder`, ready to run."""
    torch.set_num_threads(made.train.threads)  # sums depend on it in their last bits
    events = EventWriter(None, 0)
    engine = build_engine(made, mesh_of(made.layout), CpuDevice(), events)
    task = RankTask(
        folder=str(folder),
        world=1,
        host="",
        port=0,
        steps=steps,
        resume=resume,
        memory=os.environ.get("MSCTL_SPOOL", ""),
    )
    return Loop(Trainer(made, engine, events), CpuDevice(), folder, task)


def run(folder: Path, made: Recipe, *, steps: int = 0, resume: str = "auto") -> list[StepMetrics]:
    """Run it and read what it left."""
    folder.mkdir(exist_ok=True)
    gc.freeze()  # the loop collects garbage; what tests before it left is not its business
    loop_of(folder, made, steps=steps, resume=resume).run()
    return read_metrics(folder / "metrics.jsonl")


def numbers(lines: list[StepMetrics]) -> list[tuple[int, float, float]]:
    """What must be bitwise repeatable: step, loss, gradient norm."""
    return [(m.step, m.loss, m.grad_norm) for m in lines]
