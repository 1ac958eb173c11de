"""The driver of a run on this machine: starts the nursery, starts ranks, watches them, ends them.

It never imports torch. What ranks do it learns from files (metrics, failures) and from the
nursery's reports; what people should see it hands to a callback.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.comm.listen import listening_socket
from engine.errors import EngineError, LayoutError, MissingError, RecipeError, RunFailed
from engine.job.nursery import Report, Signal, Start
from engine.job.run import RunResult, write_result
from engine.spec.recipe import Recipe
from engine.train.failure import RankFailure, clear_failures, read_failures
from engine.train.metrics import StepMetrics
from engine.train.task import RankTask

POLL_S = 0.05
GRACE_S = 3.0
"""How long the other ranks may take to notice that one is gone, before they are ended."""

_KINDS: dict[str, type[EngineError]] = {
    kind.__name__: kind for kind in (RecipeError, LayoutError, MissingError)
}
"""Failures of a rank that are faults of input or machine, not of the run."""


class Watch:
    """What a caller is told while a run goes on; all optional."""

    def __init__(
        self,
        *,
        on_step: Callable[[StepMetrics], None] = lambda metrics: None,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.on_step = on_step
        self.on_note = on_note


class Driver:
    """One invocation of a run on this machine."""

    def __init__(self, recipe: Recipe, folder: Path, watch: Watch) -> None:
        self.recipe, self.folder, self.watch = recipe, folder, watch
        self._steps: list[StepMetrics] = []
        self._metrics_at = 0
        self._buffer = b""
        self._alive: set[int] = set()
        self._ended: list[Report] = []
        self._interrupts = 0
        self._asked_at = 0.0
        self._start_s = 0.0

    def run(self, *, steps: int, resume: str) -> RunResult:
        """Start all ranks, follow them to their end and say how it went.

        Raises the error a rank met if it is one of input or machine, RunFailed if ranks died.
        """
        began = time.monotonic()
        clear_failures(self.folder)
        metrics = self.folder / "metrics.jsonl"
        self._metrics_at = metrics.stat().st_size if metrics.exists() else 0
        old = signal.signal(signal.SIGINT, self._interrupt)
        try:
            with listening_socket(self.recipe.train.host, self.recipe.train.port) as meet:
                self._follow(meet, steps, resume)
        finally:
            signal.signal(signal.SIGINT, old)
        result = self._result(time.monotonic() - began)
        write_result(self.folder, result)
        if result.ended == "failed":
            raise self._failure()
        return result

    def _interrupt(self, *_: object) -> None:
        """First Ctrl-C: stop after this step, with a checkpoint. Second: at once."""
        self._interrupts += 1

    def _follow(self, meet: socket.socket, steps: int, resume: str) -> None:
        control, theirs = socket.socketpair()
        nursery = subprocess.Popen(
            [sys.executable, "-m", "engine.job.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver alone
        )
        theirs.close()
        layout = self.recipe.layout
        task = RankTask(
            folder=str(self.folder), world=layout.world_size, host=self.recipe.train.host,
            port=meet.getsockname()[1], steps=steps, resume=resume,
        )  # fmt: skip
        start = Start(ranks=tuple(range(layout.world_size)), task=task)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(control, selectors.EVENT_READ)
                self._loop(selector, control, start, meet)
        finally:
            control.close()
            nursery.wait()

    def _loop(
        self,
        selector: selectors.BaseSelector,
        control: socket.socket,
        start: Start,
        meet: socket.socket,
    ) -> None:
        asked, deadline = 0, float("inf")
        while True:
            if selector.select(POLL_S) and not self._reports(control, start, meet):
                return
            self._read_metrics()
            if self._ended and not self._alive and len(self._ended) == len(start.ranks):
                return
            if self._interrupts > asked:
                asked = self._interrupts
                self._stop(control, asked)
            if any(report.code for report in self._ended):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline:
                _tell(control, Signal(signal=signal.SIGKILL))
                deadline = float("inf")

    def _stop(self, control: socket.socket, times: int) -> None:
        if times == 1:
            self.watch.on_note("stopping after this step, with a checkpoint; Ctrl-C again: at once")
            _tell(control, Signal(signal=signal.SIGTERM))
        else:
            _tell(control, Signal(signal=signal.SIGKILL))

    def _reports(self, control: socket.socket, start: Start, meet: socket.socket) -> bool:
        """Handle what the nursery says; False when it is gone."""
        data = control.recv(1 << 16)
        if not data:
            return False
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            report = msgspec.json.decode(line, type=Report)
            if report.event == "ready":
                self.watch.on_note(f"nursery ready after {report.seconds:.1f} s")
                self._asked_at = time.monotonic()
                socket.send_fds(control, [msgspec.json.encode(start) + b"\n"], [meet.fileno()])
            elif report.event == "started":
                self._alive.add(report.rank)
            else:
                self._alive.discard(report.rank)
                self._ended.append(report)
        return True

    def _read_metrics(self) -> None:
        """Hand new lines of metrics.jsonl to the caller."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(min(self._metrics_at, path.stat().st_size))
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._metrics_at = min(self._metrics_at, path.stat().st_size) + whole
        for line in data[:whole].splitlines():
            metrics = msgspec.json.decode(line, type=StepMetrics)
            if not self._steps:
                self._start_s = time.monotonic() - self._asked_at - metrics.step_s
            self._steps.append(metrics)
            self.watch.on_step(metrics)

    def _result(self, seconds: float) -> RunResult:
        failed = any(report.code for report in self._ended) or not self._ended
        ended = "interrupted" if self._interrupts else "failed" if failed else "done"
        last = self._steps[-1] if self._steps else None
        values = [m for m in self._steps if m.val_loss is not None]
        total = self.recipe.train.steps
        tail = self._steps[len(self._steps) // 2 :]
        spent = sum(m.step_s for m in tail)
        per_step = self.recipe.batch.global_batch * self.recipe.model.seq
        return RunResult(
            job=self.folder.name, folder=str(self.folder), ended=ended,  # type: ignore[arg-type]
            steps=last.step if last else 0, total_steps=total,
            tokens=last.tokens if last else 0, seconds=seconds, start_s=self._start_s,
            loss=last.loss if last else None,
            val_loss=values[-1].val_loss if values else None,
            val_loss_per_byte=values[-1].val_loss_per_byte if values else None,
            tokens_per_s=per_step * len(tail) / spent if spent else 0.0,
            mfu=sum(m.mfu for m in tail) / len(tail) if tail else 0.0,
            cause=_cause(self._ended, read_failures(self.folder)) if failed else "",
        )  # fmt: skip

    def _failure(self) -> EngineError:
        failures = read_failures(self.folder)
        first = next((f for f in failures if f.kind in _KINDS), None)
        if first is not None and first.remedy:
            return _KINDS[first.kind](first.what, remedy=first.remedy)
        return RunFailed(
            f"{self.folder.name}: {_cause(self._ended, failures)}",
            remedy=f"read `msctl diagnose --job {self.folder.name}`; `msctl train` with the same "
            "--run folder continues from the last checkpoint",
        )


def _cause(ended: list[Report], failures: list[RankFailure]) -> str:
    """The most telling reason: a rank's own error before a signal before the loss of a peer."""
    own = [f for f in failures if f.kind != "RunFailed" or "failed:" not in f.what]
    if own:
        return f"rank {own[0].rank}: {own[0].what}"
    reported = {f.rank for f in failures}
    for report in ended:
        if report.code and report.rank not in reported:
            if report.code < 0:
                return f"rank {report.rank} was ended by {signal.Signals(-report.code).name}"
            return f"rank {report.rank} ended with exit code {report.code} and no word"
    return f"rank {failures[0].rank}: {failures[0].what}" if failures else "the ranks did not start"


def _tell(control: socket.socket, request: Signal) -> None:
    with contextlib.suppress(OSError):  # the nursery is gone, and its ranks with it
        control.sendall(msgspec.json.encode(request) + b"\n")
