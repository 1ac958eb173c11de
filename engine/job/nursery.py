"""A process that has torch imported and forks ranks on request.

Starting a rank with a fresh interpreter costs an import of torch each; forking costs milliseconds.
The nursery touches no CUDA and runs no threads, so that its children may do both. It speaks JSON
lines over the socket it is started with, and kills its ranks when that socket closes (the driver is
gone).

Requests   {"op": "start", "ranks": [...], "task": {...}} with the listening socket alongside,
           {"op": "signal", "signal": 15, "ranks": [...]}
Reports    {"event": "ready"}, {"event": "started", "rank", "pid"},
           {"event": "exit", "rank", "code"}
"""

import contextlib
import ctypes
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.spec.base import Noun
from engine.train.task import RankTask

_PR_SET_PDEATHSIG = 1
_KILL_AFTER_S = 5.0
_BODY = "engine.train.worker:run_rank"


class Start(Noun, frozen=True, kw_only=True, tag="start", tag_field="op"):
    """Fork these ranks; the store's listening socket, for rank 0, comes along as a descriptor."""

    ranks: tuple[int, ...]
    task: RankTask


class Signal(Noun, frozen=True, kw_only=True, tag="signal", tag_field="op"):
    """Send a signal to these ranks (all if empty)."""

    signal: int
    ranks: tuple[int, ...] = ()


Request = Start | Signal


class Report(Noun, frozen=True, kw_only=True):
    """What the nursery tells the driver; code is negative for a signal, as in subprocess."""

    event: str
    rank: int = -1
    pid: int = 0
    code: int = 0
    seconds: float = 0.0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (elsewhere than Linux: nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Nursery:
    """The forking loop; `body(rank, task, listen_fd)` runs in the child, returns its exit code."""

    def __init__(self, control: socket.socket, body: Callable[[int, RankTask, int], int]) -> None:
        self._control = control
        self._body = body
        self._ranks: dict[int, int] = {}
        self._buffer = b""
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Request).decode
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()

    def serve(self, *, import_s: float) -> None:
        """Answer requests until the driver closes the socket, then end all ranks."""
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write)
        self._say(Report(event="ready", pid=os.getpid(), seconds=import_s))
        with self._selector as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            open_ = True
            while open_:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        open_ = self._receive()
                    else:
                        os.read(self._wake_read, 4096)
                self._reap()
        self._end_all()

    def _receive(self) -> bool:
        """Handle what arrived; False when the driver is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        except ConnectionError:
            return False
        if not data:
            return False
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            request = self._decode(line)
            if isinstance(request, Start):
                fd = fds.pop() if fds else -1
                for rank in request.ranks:
                    self._fork(rank, request.task, fd)
                if fd >= 0:
                    os.close(fd)
            else:
                self._signal(request)
        return True

    def _fork(self, rank: int, task: RankTask, fd: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_rank(rank, task, fd, parent)
        self._ranks[pid] = rank
        self._say(Report(event="started", rank=rank, pid=pid))

    def _be_rank(self, rank: int, task: RankTask, fd: int, parent: int) -> None:
        """Life of a child: never returns, whatever happens in it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            if rank and fd >= 0:  # only rank 0 serves the store
                os.close(fd)
                fd = -1
            die_with_parent()
            if os.getppid() == parent:  # else it ended before the kernel knew whom to watch
                _redirect(Path(task.folder) / "log" / f"rank-{rank:05d}.log")
                code = self._body(rank, task, fd)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _signal(self, request: Signal) -> None:
        for pid, rank in self._ranks.items():
            if not request.ranks or rank in request.ranks:
                os.kill(pid, request.signal)

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid, -1)
            self._say(
                Report(event="exit", rank=rank, pid=pid, code=os.waitstatus_to_exitcode(status))
            )

    def _say(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the driver is gone; the closed socket ends the loop
            self._control.sendall(self._encode(report) + b"\n")

    def _end_all(self) -> None:
        """Ask all ranks to end, then insist."""
        deadline = time.monotonic() + _KILL_AFTER_S
        self._signal(Signal(signal=signal.SIGTERM))
        while self._ranks and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.02)
        self._signal(Signal(signal=signal.SIGKILL))


def _redirect(log: Path) -> None:
    """Send this process's stdout and stderr, those of C++ too, to its log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def main() -> None:
    """Entry of the nursery process: `python -m engine.job.nursery FD [MODULE:FUNCTION]`.

    The function is what a rank does; it is `engine.train.worker:run_rank` unless named.
    """
    start = time.monotonic()
    die_with_parent()
    from engine.train.worker import warm_up

    module, _, name = (sys.argv[2] if len(sys.argv) > 2 else _BODY).partition(":")
    body = getattr(importlib.import_module(module), name)
    warm_up()
    control = socket.socket(fileno=int(sys.argv[1]))
    Nursery(control, body).serve(import_s=time.monotonic() - start)


if __name__ == "__main__":
    main()
