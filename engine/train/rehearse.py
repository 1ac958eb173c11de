"""The faults a rank does to itself when a drill asks for them; without one nothing of this runs.

They are real: the process aborts, ends, sleeps, or is refused memory by the kernel.
"""

import ctypes
import logging
import os
import resource
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.events.writer import EventWriter
from engine.parallel.tensor import ParallelNorm
from engine.parallel.witness import BITS
from engine.spec.recipe import Recipe
from engine.train.build import Engine
from engine.train.drill import Fault, parse_fault
from engine.train.strike import count_strikes, note_strike
from engine.train.task import RankTask
from engine.train.trainer import Batches, StepResult, Trainer

logger = logging.getLogger(__name__)

_ROOM_BYTES = 64 << 20
_FOREVER_S = 1_000_000
_MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
"""Bits of the mantissa by type."""


def trainer_of(recipe: Recipe, engine: Engine, events: EventWriter, task: RankTask) -> Trainer:
    """A trainer, and if the task has drills for this rank, one that goes wrong as they say."""
    faults = faults_of(engine.mesh.rank, task)
    if not faults:
        return Trainer(recipe, engine, events, skip=task.skip)
    return Rehearsal(recipe, engine, events, skip=task.skip, faults=faults,
                     folder=Path(task.folder))  # fmt: skip


def faults_of(rank: int, task: RankTask) -> tuple[Fault, ...]:
    """What this rank does to itself."""
    found = map(parse_fault, task.drills)
    return tuple(f for f in found if f.is_in_rank and (f.rank == rank or f.kind == "bug"))


def rehearse_start(rank: int, task: RankTask) -> None:
    """What goes wrong before the ranks have met."""
    for fault in faults_of(rank, task):
        if fault.kind == "hang-start" and _is_left(fault, Path(task.folder)):
            note_strike(Path(task.folder), fault.text())
            time.sleep(_FOREVER_S)


class Rehearsal(Trainer):
    """A trainer in which faults come."""

    def __init__(
        self, recipe: Recipe, engine: Engine, events: EventWriter, *, skip: Sequence[int],
        faults: Sequence[Fault], folder: Path,
    ) -> None:  # fmt: skip
        super().__init__(recipe, engine, events, skip=skip)
        self._folder = folder
        self._faults = faults
        self._poison = False

    def step(self, step: int, batches: Batches, *, stop: bool = False) -> StepResult:
        """As the trainer's, but for the faults of this step."""
        due = [f for f in self._faults if f.step == step and _is_left(f, self._folder)]
        self._poison = any(fault.kind == "nan" for fault in due)
        if any(fault.kind == "flip" for fault in due):
            compute_wrong(self.engine)

        def late(number: int) -> list:
            for fault in due if number == step else ():
                _strike(fault, self._folder)
            return batches(number)

        return super().step(step, late if due else batches, stop=stop)

    def _agree(self, loss: Tensor, grads: list[Tensor], stop: bool) -> tuple[float, float, bool]:
        if self._poison:
            loss = loss + float("nan")
            if self.engine.mesh.tp.index:  # its loss is not counted, its gradients are
                grads = [grad + float("nan") for grad in grads]
        return super()._agree(loss, grads, stop)


def _is_left(fault: Fault, folder: Path) -> bool:
    """Whether it has not come as often as it shall; a bug of the program comes always."""
    return fault.kind == "bug" or count_strikes(folder, fault.text()) < fault.times


def _strike(fault: Fault, folder: Path) -> None:
    logger.warning("drill: %s", fault.text())
    note_strike(folder, fault.text(), in_s=fault.after)
    if fault.after and fault.kind in ("crash", "segv", "exit0", "exit"):
        timer = threading.Timer(fault.after, _now, (fault.kind,))
        timer.daemon = True
        timer.start()
        return
    time.sleep(fault.after)
    _now(fault.kind)


def _now(kind: str) -> None:
    if kind == "crash":
        os.abort()
    if kind == "segv":
        ctypes.string_at(0)
    if kind in ("exit0", "exit"):
        os._exit(0 if kind == "exit0" else 1)
    if kind in ("exception", "bug"):
        raise ValueError("a drill raised this")
    if kind == "hang":
        time.sleep(_FOREVER_S)
    if kind == "gil":
        ctypes.PyDLL(None).sleep(_FOREVER_S)
    if kind == "oom":
        _ask_for_too_much()


def compute_wrong(engine: Engine, *, once: bool = False) -> None:
    """From now on one bit of a norm's result is wrong whenever it is computed, or once only."""
    modules = (m for chunk in engine.stage.chunks.values() for m in chunk.modules())
    norm = next(module for module in modules if isinstance(module, ParallelNorm))

    def wrong(
        module: torch.nn.Module, inputs: tuple[Any, ...], outs: tuple[Tensor, Tensor]
    ) -> None:  # fmt: skip
        _flip(outs[0])
        if once:
            handle.remove()

    handle = norm.register_forward_hook(wrong)


def _flip(out: Tensor) -> None:
    """Flip a bit of the first number's mantissa, in place."""
    bits = out.detach().view(-1).view(BITS[out.element_size()])
    bits[0] ^= 1 << (_MANTISSA[out.dtype] - 2)


def _ask_for_too_much() -> None:
    """Let the kernel refuse memory: a limit a little above what is in use, then more than that."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, hard))
    torch.ones(16 * _ROOM_BYTES)
