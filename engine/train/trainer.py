"""The training loop and its step: the file to open first.

A step is: data, the pipeline's program (forwards, backwards and their communication), the
reductions that are still under way, one small all-reduce of loss and gradient norm, the update of
this rank's shards.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm.collectives import all_reduce
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.optim.clip import clip_factor, square_sum
from engine.optim.schedule import learning_rate
from engine.schedule.action import Kind
from engine.spec.recipe import Recipe
from engine.train.build import Engine, Unit, counted_parts
from engine.train.failure import BadNumbers

Batches = Callable[[int], list[MicroBatch]]
"""Step number -> this replica's micro-batches."""


class StepResult(NamedTuple):
    """What one step did; the same on every rank."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    step_s: float
    stop: bool
    """Some rank was asked to stop after this step."""
    skipped: bool = False
    """Nothing was learnt from this step's batch."""


class Trainer:
    """Runs steps of one recipe on one rank."""

    def __init__(
        self, recipe: Recipe, engine: Engine, events: EventWriter, *, skip: Sequence[int] = ()
    ) -> None:
        self.recipe, self.engine, self.events = recipe, engine, events
        self._skip = frozenset(skip)
        self._bad_in_a_row = 0
        self.before_update: Callable[[], None] = lambda: None
        """Called when the step has computed all and changed nothing yet."""
        self.tokens_per_step = recipe.batch.global_batch * recipe.model.seq
        self._parts = [counted_parts(unit, engine) for unit in engine.all_units()]

    def step(self, step: int, batches: Batches, *, stop: bool = False) -> StepResult:
        """Optimizer update number `step`; `stop` asks all ranks to end after it.

        Raises BadNumbers if loss or gradient norm is not finite, unless the step is to be left out;
        job.repeats bad steps in a row are no fault of the data and always raise.
        """
        engine, events, job = self.engine, self.events, self.recipe.job
        events.step = step + 1  # what people read counts steps from one
        start = time.perf_counter()
        with events.span("step"):
            self._gather_first()
            with events.span("data"):
                micro = batches(step)
            self._gather_tied()
            loss = engine.train.run(
                micro.__getitem__, scale=1.0 / self.tokens_per_step, on_reduce=self._reduce
            )
            grads = self._finish_gradients()
            with events.span("clip"):
                total, norm, stopping = self._agree(loss, grads, stop)
                factor = clip_factor(norm, self.recipe.optimizer.clip_norm)
            mean = total / self.tokens_per_step
            is_bad = not (math.isfinite(mean) and math.isfinite(norm))
            self._bad_in_a_row = self._bad_in_a_row + 1 if is_bad else 0
            leaves_out = self._bad_in_a_row < job.repeats and job.bad_numbers == "skip"
            skips = step in self._skip or (is_bad and leaves_out)
            if is_bad and not skips:
                raise BadNumbers(step, self.recipe.batch.global_batch, mean, norm)
            lr = learning_rate(self.recipe.optimizer, step, total=self.recipe.train.steps)
            self.before_update()
            with events.span("optimizer"):
                if skips:
                    self._leave_out()
                else:
                    self._update(step, grads, factor, lr)
        length = time.perf_counter() - start
        events.value("loss", mean)
        events.flush()
        return StepResult(step, mean, norm, lr, length, stopping, skips)

    @torch.no_grad()
    def evaluate(self, steps: list[list[MicroBatch]]) -> float:
        """Mean loss over fixed batches, nats per token."""
        engine = self.engine
        with self.events.span("eval"):
            self._gather_tied()
            for chunk in engine.stage.chunks.values():
                chunk.eval()
            total = torch.zeros((), dtype=torch.float64, device=engine.stage.device)
            for micro in steps:
                total += engine.evaluate.run(
                    micro.__getitem__, scale=0.0, on_reduce=lambda chunk: None
                )
            for chunk in engine.stage.chunks.values():
                chunk.train()
            if engine.mesh.tp.index > 0:
                total.zero_()
            all_reduce(total, engine.mesh.world).wait()
        return float(total) / (self.tokens_per_step * len(steps))

    def _gather_first(self) -> None:
        """Start the gathers that the program begins with: they run while data are fetched."""
        engine = self.engine
        for action in engine.train.program:
            if action.kind is not Kind.UNSHARD:
                break
            engine.stage.shards[action.chunk].start_unshard()
        if engine.tied is not None:
            engine.tied.shard.start_unshard()

    def _gather_tied(self) -> None:
        """Bring a tied vocabulary matrix up to date."""
        if self.engine.tied is not None:
            # a span, so that a hang tells whom this rank waits for
            self.events.enter("wait", "compute", on="dp_gather")
            self.engine.tied.shard.start_unshard()
            self.engine.tied.shard.finish_unshard()
            self.events.leave(longer_than_ns=20_000)

    def _reduce(self, chunk: int) -> None:
        self.engine.units[chunk].shard.start_reduce()

    def _finish_gradients(self) -> list[Tensor]:
        """Reduced gradients of all shards, in the order of `all_units`."""
        tied = self.engine.tied
        if tied is not None:
            with self.events.span("tied", "dp_reduce"):
                all_reduce(tied.shard.flat.grad, self.engine.mesh.tied).wait()
                tied.shard.start_reduce()
        self.events.enter("wait", "compute", on="dp_reduce")
        grads = [unit.shard.finish_reduce() for unit in self.engine.all_units()]
        self.events.leave(longer_than_ns=20_000)
        return grads

    def _agree(self, loss: Tensor, grads: list[Tensor], stop: bool) -> tuple[float, float, bool]:
        """Total loss, gradient norm and the wish to stop, agreed by all ranks in one message."""
        mesh = self.engine.mesh
        counted = [
            grad[begin:end]
            for grad, runs in zip(grads, self._parts, strict=True)
            for begin, end in runs
        ]
        squares = square_sum(counted, loss.device)
        own_loss = loss if mesh.tp.index == 0 else torch.zeros_like(loss)
        wish = torch.full_like(loss, float(stop))
        numbers = torch.stack((own_loss, squares, wish))
        all_reduce(numbers, mesh.world).wait()
        total, square, wishes = numbers.tolist()
        return total, math.sqrt(square), wishes > 0

    def _leave_out(self) -> None:
        """Learn nothing from this step: weights and moments stay, gradients are forgotten."""
        for unit in self.engine.all_units():
            unit.shard.updated()

    def _update(self, step: int, grads: list[Tensor], factor: float, lr: float) -> None:
        """Move this rank's part of every parameter."""
        for unit, grad in zip(self.engine.all_units(), grads, strict=True):
            _apply(unit, grad, factor, lr, step)


def _apply(unit: Unit, grad: Tensor, factor: float, lr: float, step: int) -> None:
    unit.optimizer.step(grad, lr=lr, update=step, scale=factor)
    unit.shard.updated()
