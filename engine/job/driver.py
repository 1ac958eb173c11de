"""The driver of a run on this machine: starts the nursery, starts ranks, watches them, ends them.

It never imports torch. What ranks do it learns from files (metrics, failures) and from the
nursery's reports; what people should see it hands to a callback.
"""

import contextlib
import os
import platform
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from engine.comm.embedded_redis import store_of
from engine.comm.listen import listening_socket
from engine.data.node_process import NodeProcess, NodeTask
from engine.job.cause import Cause, as_error, find_cause
from engine.job.nursery import Report, Signal, Start
from engine.job.run import RunResult, hold_folder, prepare_folder, write_result
from engine.spec.recipe import Recipe
from engine.train.failure import clear_failures, read_failures
from engine.train.metrics import MetricsTail, StepMetrics
from engine.train.task import RankTask

POLL_S = 0.05
GRACE_S = 3.0
"""How long the other ranks may take to notice that one is gone, before they are ended."""
_NURSERY_END_S = 20.0
"""How long the nursery may take to end its ranks when the driver is done with them."""


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
        self._buffer = b""
        self._ended: list[Report] = []
        self._killed_from: int | None = None
        """How many ranks had ended when this driver ended the others."""
        self._interrupts = 0
        self._asked_at = 0.0
        self._start_s = 0.0

    def run(self, *, steps: int, resume: str) -> RunResult:
        """Start all ranks, follow them to their end and say how it went.

        Raises the error a rank met if it is one of input or machine, RunFailed if ranks died.
        """
        began = time.monotonic()
        with hold_folder(self.folder), self._interruptible():
            prepare_folder(self.folder, self.recipe)
            clear_failures(self.folder)
            tail = MetricsTail(self.folder / "metrics.jsonl")
            with (
                listening_socket(self.recipe.train.host, self.recipe.train.port) as meet,
                node_loader(self.recipe, self.folder) as loader,
                store_of(self.recipe.train.store) as store,
            ):
                task = self._task(meet, steps, resume, loader, store)
                code = self._follow(meet, tail, task)
            failed = len(self._ended) < self.recipe.layout.world_size
            failed = failed or any(report.code for report in self._ended)
            cause = self._cause(code) if failed else None
            result = self._result(time.monotonic() - began, tail.last, cause)
            write_result(self.folder, result)
        if result.ended == "failed":
            assert cause is not None, "a failed run has a cause"
            raise as_error(cause, self.folder.name)
        return result

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Count Ctrl-C and SIGTERM instead of dying of them.

        The first means: stop after this step, with a checkpoint. The second: at once.
        """

        def count(*_: object) -> None:
            self._interrupts += 1

        kinds = (signal.SIGINT, signal.SIGTERM)
        old = [signal.signal(kind, count) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, old, strict=True):
                signal.signal(kind, handler)

    def _task(
        self, meet: socket.socket, steps: int, resume: str, loader: str, store: str
    ) -> RankTask:
        """What all ranks of this start are told."""
        return RankTask(
            folder=str(self.folder), world=self.recipe.layout.world_size,
            host=self.recipe.train.host, port=meet.getsockname()[1], steps=steps, resume=resume,
            loader=loader, store_url=store,
            store_prefix=f"{self.folder.name}/{secrets.token_hex(4)}/", nodes=(platform.node(),),
        )  # fmt: skip

    def _follow(self, meet: socket.socket, tail: MetricsTail, task: RankTask) -> int:
        """Run a nursery to its end; returns its exit code."""
        control, theirs = socket.socketpair()
        start = Start(ranks=tuple(range(task.world)), task=task)
        with control, selectors.DefaultSelector() as selector:
            nursery = self._start_nursery(theirs)
            try:
                selector.register(control, selectors.EVENT_READ)
                self._loop(selector, control, start, meet, tail)
            finally:
                control.close()
                try:
                    nursery.wait(timeout=_NURSERY_END_S)
                except subprocess.TimeoutExpired:
                    nursery.kill()
                    nursery.wait()
        for metrics in tail.new():
            self._step(metrics)
        return nursery.returncode

    def _start_nursery(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        """What it prints goes to its log; stdout is the command's own."""
        log = self.folder / "log" / "nursery.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "engine.job.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,  # Ctrl-C is for the driver alone
            )  # fmt: skip

    def _loop(
        self,
        selector: selectors.BaseSelector,
        control: socket.socket,
        start: Start,
        meet: socket.socket,
        tail: MetricsTail,
    ) -> None:
        asked, deadline = 0, float("inf")
        while True:
            if selector.select(POLL_S) and not self._reports(control, start, meet):
                return
            for metrics in tail.new():
                self._step(metrics)
            if len(self._ended) == len(start.ranks):
                return
            if self._interrupts > asked:
                asked = self._interrupts
                self._stop(control, asked)
            if any(report.code for report in self._ended):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline:
                self._killed_from = len(self._ended)
                _tell(control, Signal(signal=signal.SIGKILL))
                deadline = float("inf")

    def _stop(self, control: socket.socket, times: int) -> None:
        if times == 1:
            self.watch.on_note("stopping after this step, with a checkpoint; Ctrl-C again: at once")
            _tell(control, Signal(signal=signal.SIGTERM))
        else:
            _tell(control, Signal(signal=signal.SIGKILL))

    def _reports(self, control: socket.socket, start: Start, meet: socket.socket) -> bool:
        """Handle what the nursery says; False when there is nothing more to wait for."""
        try:
            data = control.recv(1 << 16)
        except ConnectionError:
            return False
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            report = msgspec.json.decode(line, type=Report)
            if report.event == "ready":
                if self._interrupts:
                    return False  # nothing has been started, nothing is to be saved
                self.watch.on_note(f"nursery ready after {report.seconds:.1f} s")
                self._asked_at = time.monotonic()
                socket.send_fds(control, [msgspec.json.encode(start) + b"\n"], [meet.fileno()])
            elif report.event == "exit":
                self._ended.append(report)
        return bool(data)

    def _step(self, metrics: StepMetrics) -> None:
        if not self._steps:
            self._start_s = time.monotonic() - self._asked_at - metrics.step_s
        self._steps.append(metrics)
        self.watch.on_step(metrics)

    def _result(self, seconds: float, last: StepMetrics | None, cause: Cause | None) -> RunResult:
        ended: Literal["done", "interrupted", "failed"] = "done" if cause is None else "failed"
        if self._interrupts and (cause is None or self._interrupts > 1 or not cause.is_own):
            ended = "interrupted"
        values = [m for m in self._steps if m.val_loss is not None]
        tail = self._steps[len(self._steps) // 2 :]
        spent = sum(m.step_s for m in tail)
        per_step = self.recipe.batch.global_batch * self.recipe.model.seq
        return RunResult(
            job=self.folder.name, folder=str(self.folder), ended=ended,
            steps=last.step if last else 0, total_steps=self.recipe.train.steps,
            tokens=last.tokens if last else 0, seconds=seconds, start_s=self._start_s,
            loss=last.loss if last else None,
            val_loss=values[-1].val_loss if values else None,
            val_loss_per_byte=values[-1].val_loss_per_byte if values else None,
            tokens_per_s=per_step * len(tail) / spent if spent else 0.0,
            mfu=sum(m.mfu for m in tail) / len(tail) if tail else 0.0,
            cause=cause.what if cause is not None else "",
        )  # fmt: skip

    def _cause(self, nursery_code: int) -> Cause:
        """Why ranks failed, or why there were none."""
        cause = find_cause(self._ended[: self._killed_from], read_failures(self.folder))
        if self._ended or self._interrupts:
            return cause
        log = self.folder / "log" / "nursery.log"
        what = f"the process that forks ranks ended with code {nursery_code} before any rank did"
        return cause._replace(what=what, remedy=f"read {log}", is_own=True)


@contextlib.contextmanager
def node_loader(recipe: Recipe, folder: Path) -> Iterator[str]:
    """The loader process of this node while its ranks run: its address, empty if they read."""
    if recipe.data.loader == "rank":
        yield ""
        return
    layout = recipe.layout
    task = NodeTask(
        recipe=str(folder / "recipe.toml"),
        replicas=tuple(range(layout.dp)),
        ranks=layout.world_size,
    )
    with NodeProcess(task, log_file=folder / "log" / "data.log") as process:
        yield process.address


def _tell(control: socket.socket, request: Signal) -> None:
    with contextlib.suppress(OSError):  # the nursery is gone, and its ranks with it
        control.sendall(msgspec.json.encode(request) + b"\n")
