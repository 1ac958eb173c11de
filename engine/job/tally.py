"""What one invocation of a run came to: its steps, how it ended, and the numbers people ask for."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from engine.job.cause import Cause
from engine.job.incident import Recovery
from engine.job.run import RunResult
from engine.spec.recipe import Recipe
from engine.train.metrics import StepMetrics

Ended = Literal["done", "interrupted", "failed"]


class Tally:
    """Steps of one invocation, from the moment its ranks were first asked to start."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe, self._folder = recipe, folder
        self.steps: list[StepMetrics] = []
        self._began = time.monotonic()
        self._asked_at = self._start_s = 0.0

    def ask(self) -> None:
        """Ranks are told to start; the first time counts."""
        self._asked_at = self._asked_at or time.monotonic()

    def add(self, metrics: StepMetrics) -> None:
        """A step was made."""
        if not self.steps:
            self._start_s = time.monotonic() - self._asked_at - metrics.step_s
        self.steps.append(metrics)

    def result(
        self, ended: Ended, cause: Cause | None, last: StepMetrics | None,
        recoveries: Sequence[Recovery],
    ) -> RunResult:  # fmt: skip
        """How it went. last: the newest step of the run, also if this invocation made none."""
        values = [m for m in self.steps if m.val_loss is not None]
        tail = self.steps[len(self.steps) // 2 :]
        spent = sum(m.step_s for m in tail)
        per_step = self._recipe.batch.global_batch * self._recipe.model.seq
        restarts = [r for r in recoveries if r.decision and r.decision.kind != "stop"]
        return RunResult(
            job=self._folder.name, folder=str(self._folder), ended=ended,
            steps=last.step if last else 0, total_steps=self._recipe.train.steps,
            tokens=last.tokens if last else 0, seconds=time.monotonic() - self._began,
            start_s=self._start_s, loss=last.loss if last else None,
            val_loss=values[-1].val_loss if values else None,
            val_loss_per_byte=values[-1].val_loss_per_byte if values else None,
            tokens_per_s=per_step * len(tail) / spent if spent else 0.0,
            mfu=sum(m.mfu for m in tail) / len(tail) if tail else 0.0,
            restarts=len(restarts), cause=cause.what if cause is not None else "",
        )  # fmt: skip
