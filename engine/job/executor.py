"""The executor of a node: starts its nursery and ranks, watches them, tells the driver (paper 4.1).

Torch-free and small, so that it answers while everything else is stuck. One loop: orders of the
driver, reports of the nursery, a heartbeat twice a second and at once when something happened.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from engine.data.node_process import NodeProcess, NodeTask
from engine.errors import MissingError, TraceError
from engine.health.heartbeat import Heartbeat
from engine.health.heartbeat_counters import CounterReader
from engine.health.heartbeat_slot import Slots
from engine.job.link import ExecutorLink, Lines
from engine.job.node_check import check_node
from engine.job.nursery import Report, Signal, Start, die_with_parent
from engine.job.order import ExecutorTask, Order
from engine.job.ranks import Ranks
from engine.job.throttle import Throttle
from engine.spec.load import load_recipe

_TICK_S = 0.1
_COUNTERS_S = 2.0
_DUMP_S = 1.0
_NURSERY_END_S = 8.0
_REMEMBERED = 64
"""Orders of which a second copy is seen as one."""


class Link(Protocol):
    """How orders come and beats go."""

    def fileno(self) -> int:
        """Readable when orders may have come."""

    def orders(self) -> Iterable[tuple[Order, int]] | None:
        """Orders that came; None when there will be none any more."""

    def beat(self, beat: Heartbeat) -> None:
        """Tell the driver."""


class Executor:
    """One node's part of a job."""

    def __init__(self, task: ExecutorTask, link: Link) -> None:
        self.task, self.link = task, link
        self.folder = Path(task.folder)
        self.slots = Slots.make(max(1, task.slots))
        self.ranks = Ranks(self.slots)
        self._counters = CounterReader()
        self._counted = (0.0, self._counters.read())
        self._boot, self._seq, self._token = uuid.uuid4().hex[:12], 0, 0
        self._answers: dict[str, str] = {}
        self._obeyed: deque[str] = deque(maxlen=_REMEMBERED)
        self._attempt, self._warm_s, self._clock_s = -1, 0.0, 0.0
        self._waiting: tuple[Order, int] | None = None
        self._dumping: tuple[str, float] | None = None
        self._loader: NodeProcess | None = None
        self._throttle = Throttle()
        self._changed = self._leaving = False
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._start_nursery()

    # -- the loop

    def serve(self) -> None:
        """Work until the driver says so or is gone."""
        self._selector.register(self.link, selectors.EVENT_READ)
        beat_at, open_ = 0.0, True
        try:
            while open_:
                for key, _ in self._selector.select(_TICK_S):
                    if key.fileobj is self._nursery_socket:
                        self._hear_nursery()
                    else:
                        open_ = self._obey() and open_
                self._finish_dump()
                open_ = open_ and not (self._leaving and not self.ranks.running)
                now = time.monotonic()
                if self._changed or now >= beat_at:
                    self._changed, beat_at = False, now + self.task.beat_s
                    self.link.beat(self.beat())
        finally:
            self.end()

    def leave(self) -> None:
        """The node is wanted back: ranks stop after this step, with a checkpoint."""
        self._leaving = True
        self._tell_nursery(Signal(signal=signal.SIGTERM))

    def end(self) -> None:
        """End ranks, nursery and loader."""
        self._throttle.stop()
        self._stop_loader()
        self._nursery_socket.close()
        try:
            self._nursery.wait(timeout=_NURSERY_END_S)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()

    def beat(self) -> Heartbeat:
        """What there is to say now."""
        now = time.monotonic()
        if now - self._counted[0] > _COUNTERS_S:
            self._counted = (now, self._counters.read())
        with self._lock:
            answers, self._answers = self._answers, {}
        self._seq += 1
        state = "warming" if not self._warm_s else "running" if self.ranks.running else "ready"
        return Heartbeat(
            node=self.task.node, seq=self._seq, boot=self._boot, address=socket.gethostname()[:256],
            pid=os.getpid(), attempt=self._attempt, token=self._token,
            state=state,  # type: ignore[arg-type] # one of the three
            warm_s=self._warm_s, wall_s=time.time() + self._clock_s, ranks=self.ranks.beats(),
            counters=self._counted[1], error=self.ranks.last_error(self.folder), answers=answers,
        )  # fmt: skip

    # -- orders

    def _obey(self) -> bool:
        try:
            orders = self.link.orders()
            if orders is None:
                return False
            for order, fd in orders:
                if order.token < self._token:
                    self._answer(order.id, f"refused: driver {self._token} is in charge")
                    continue
                if order.id in self._obeyed:  # its driver could not know that it had come
                    if fd >= 0:
                        os.close(fd)
                    continue
                self._obeyed.append(order.id)
                self._token = order.token
                if order.op == "end":
                    return False
                self._carry_out(order, fd)
        except TraceError as error:
            self._answer("refused", error.what)
        return True

    def _carry_out(self, order: Order, fd: int) -> None:
        if order.op == "start":
            if self._warm_s:
                self._start_ranks(order, fd)
            else:
                self._waiting = (order, fd)
        elif order.op == "signal":
            self._tell_nursery(Signal(signal=order.signal, ranks=order.ranks))
            if order.signal == signal.SIGKILL:
                self._stop_loader()
        elif order.op == "dump":
            self.ranks.ask_dump()
            self._dumping = (order.id, time.monotonic() + _DUMP_S)
        elif order.op == "slow":
            self._throttle.start([self.ranks.pid(rank) for rank in order.ranks], order.value)
        elif order.op == "clock":
            self._clock_s = order.value
        else:
            threading.Thread(target=self._look, args=(order,), daemon=True).start()

    def _look(self, order: Order) -> None:
        """In a thread: a check may hang, beats must not."""
        self._answer(order.id, check_node(order, self.task))

    def _answer(self, order_id: str, text: str) -> None:
        with self._lock:
            self._answers[order_id] = text[:4000]
        self._changed = True

    # -- ranks

    def _start_ranks(self, order: Order, fd: int) -> None:
        assert order.task is not None, "a start has a task"
        self._attempt = order.task.attempt
        self.ranks.expect(order.ranks)
        first = min(order.ranks, default=0)
        task = msgspec.structs.replace(
            order.task, beats=self.slots.path, local_offset=first,
            loader=self._start_loader(order.ranks),
        )  # fmt: skip
        data = msgspec.json.encode(Start(ranks=order.ranks, task=task)) + b"\n"
        with contextlib.suppress(OSError):
            if fd >= 0:
                sent = socket.send_fds(self._nursery_socket, [data], [fd])
                data = data[sent:]
            self._nursery_socket.sendall(data)
        if fd >= 0:
            os.close(fd)
        self._answer(order.id, "started")

    def _start_loader(self, ranks: tuple[int, ...]) -> str:
        """The loader process of this node while its ranks run: its address, empty if they read."""
        self._stop_loader()
        path = self.folder / "recipe.toml"
        recipe = load_recipe(path)
        if recipe.data.loader == "rank":
            return ""
        replicas = tuple(sorted({recipe.layout.coord(rank).dp for rank in ranks}))
        task = NodeTask(recipe=str(path), replicas=replicas, ranks=len(ranks))
        log = self.folder / "log" / self._name("data")
        self._loader = NodeProcess(task, log_file=log)
        return self._loader.address

    def _stop_loader(self) -> None:
        if self._loader is not None:
            self._loader.stop()
            self._loader = None

    def _finish_dump(self) -> None:
        """Once open spans are written, or will not be, take the stacks as well."""
        if self._dumping is None:
            return
        order_id, deadline = self._dumping
        missing = self.ranks.without_dump()
        if missing and time.monotonic() < deadline:
            return
        self._dumping = None
        self._tell_nursery(Signal(signal=signal.SIGUSR1))
        self._answer(order_id, self.ranks.described(missing))

    # -- the nursery

    def _name(self, what: str) -> str:
        return f"{what}.log" if self.task.node == "local" else f"{what}-{self.task.node}.log"

    def _start_nursery(self) -> None:
        """What it prints goes to its log; stdout is the command's own."""
        self._nursery_socket, theirs = socket.socketpair()
        self._nursery_lines, self._warm_s = Lines(), 0.0
        log = self.folder / "log" / self._name("nursery")
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as output:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "engine.job.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._selector.register(self._nursery_socket, selectors.EVENT_READ)

    def _hear_nursery(self) -> None:
        try:
            data = self._nursery_socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._bury_nursery()
            return
        for line in self._nursery_lines.feed(data):
            report = msgspec.json.decode(line, type=Report)
            self._changed = True
            if report.event == "ready":
                self._warm_s = max(report.seconds, 1e-3)
                if self._waiting is not None:
                    order, fd = self._waiting
                    self._waiting = None
                    self._start_ranks(order, fd)
            else:
                self.ranks.report(report)

    def _bury_nursery(self) -> None:
        """It is gone and its ranks with it: say so, have a new one."""
        self._selector.unregister(self._nursery_socket)
        self._nursery_socket.close()
        self._nursery.kill()
        code = self._nursery.wait()
        self.ranks.all_gone()
        self._answer("nursery", f"the process that forks ranks ended with code {code}")
        self._start_nursery()

    def _tell_nursery(self, request: Signal) -> None:
        with contextlib.suppress(OSError):
            self._nursery_socket.sendall(msgspec.json.encode(request) + b"\n")


@contextlib.contextmanager
def open_link(task: ExecutorTask) -> Iterator[Link]:
    """The link that the task names."""
    if task.link_fd >= 0:
        die_with_parent()
        with socket.socket(fileno=task.link_fd) as control:
            yield ExecutorLink(control)
        return
    from engine.job.link_redis import RedisExecutorLink

    link = RedisExecutorLink(task)
    try:
        yield link
    finally:
        link.close()


def main() -> int:
    """Entry of the executor process: `python -m engine.job.executor < TASK`; see ExecutorTask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver alone
    try:
        task = msgspec.json.decode(sys.stdin.buffer.readline(1 << 16), type=ExecutorTask)
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"error: not an executor's task: {error}\n")
        return 3
    try:
        with open_link(task) as link:
            Executor(task, link).serve()
    except MissingError as error:
        sys.stderr.write(f"error: {error.what}\n\nhint: {error.remedy}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
