"""Where executors run. Here: on this machine, one process for each node of the rehearsal.

`slurm.py` and `kubernetes.py` are the other places; there executors come by themselves, through
Redis.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from engine.job.link import DriverLink
from engine.job.nodes import Link, Node
from engine.job.order import ExecutorTask
from engine.job.server import Server, job_server
from engine.job.start import StartRecord
from engine.processes import state_of
from engine.spec.recipe import Recipe

_END_S = 12.0


class Place(Protocol):
    """What a driver needs of the place where its executors run."""

    @property
    def can_start(self) -> int:
        """Nodes that can be had anew within seconds."""

    def store(
        self, recipe: Recipe, folder: Path
    ) -> contextlib.AbstractContextManager[Server | None]:
        """The job's Redis, if it has one, for as long as this driver works."""

    @property
    def token(self) -> int:
        """What this driver's orders carry."""

    def recall(self) -> StartRecord | None:
        """What the driver before this one started and may still run."""

    def remember(self, record: StartRecord) -> None:
        """Keep what was started for the next driver."""

    def newcomers(self) -> list[Node]:
        """Nodes that joined by themselves since the last call."""

    @property
    def is_deaf(self) -> bool:
        """Whether nodes cannot be heard now through no fault of theirs."""

    def open(self, recipe: Recipe, folder: Path) -> list[Node]:
        """Have the first nodes, spares among them, not yet joined."""

    def start_node(self) -> Node:
        """Have one more; only where `can_start` says so."""

    def wait(self, links: Sequence[Link], within_s: float) -> None:
        """Return when a link has something to say, or after so long."""

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Orders given inside may be sent as one when it ends."""

    def vouches(self, node: Node) -> bool:
        """Whether the place itself knows that a silent node's executor runs."""

    def evict(self, node: Node, why: str) -> None:
        """Take a node out of use."""

    def close(self) -> None:
        """End what this driver started."""


class LocalPlace:
    """Executors as processes of this machine; they and their ranks end with the driver."""

    can_start = 1 << 16
    token = 1
    is_deaf = False

    def __init__(self, *, wrap: Callable[[str], list[str]] | None = None) -> None:
        """`wrap(node)` gives words to put before a node's command, e.g. of a network namespace."""
        self._redis, self._wrap = "", wrap
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    @contextlib.contextmanager
    def store(self, recipe: Recipe, folder: Path) -> Iterator[Server | None]:
        """As `train.store` says."""
        with job_server(recipe, folder) as server:
            self._redis = server.url if server else ""
            yield server

    def recall(self) -> StartRecord | None:
        """Nothing: executors end with their driver."""
        return None

    def remember(self, record: StartRecord) -> None:
        """Nothing to keep."""

    def newcomers(self) -> list[Node]:
        """None: nodes are started by this driver."""
        return []

    def open(self, recipe: Recipe, folder: Path) -> list[Node]:
        """As many as the recipe says."""
        self._folder, self._job = folder, recipe.job
        self._slots = -(-recipe.layout.world_size // recipe.job.nodes)
        return [self.start_node() for _ in range(recipe.job.nodes + recipe.job.spares)]

    def start_node(self) -> Node:
        """A new executor. A run of one node calls it `local`, others `node-N`."""
        alone = self._job.nodes + self._job.spares == 1
        name = "local" if alone else f"node-{self._started}"
        self._started += 1
        ours, theirs = socket.socketpair()
        task = ExecutorTask(
            node=name, folder=str(self._folder), slots=self._slots, beat_s=self._job.beat_s,
            link_fd=theirs.fileno(), redis=self._redis,
        )  # fmt: skip
        log = self._folder / "log" / ("executor.log" if alone else f"executor-{name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        words = self._wrap(name) if self._wrap else []
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [*words, sys.executable, "-m", "engine.job.executor"],
                pass_fds=[theirs.fileno()], env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True,  # Ctrl-C is for the driver alone
            )  # fmt: skip
        assert process.stdin is not None, "a pipe was asked for"
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(msgspec.json.encode(task) + b"\n")
        self._processes[name] = process
        return Node(name, DriverLink(ours))

    def wait(self, links: Sequence[Link], within_s: float) -> None:
        """By their sockets."""
        select.select(links, [], [], within_s)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Every order goes at once: the way to a process is short."""
        return contextlib.nullcontext()

    def vouches(self, node: Node) -> bool:
        """By the kernel: there and not stopped. An overloaded machine makes executors silent."""
        return state_of(self.pid(node.name)) in ("R", "S", "D")

    def evict(self, node: Node, why: str) -> None:
        """End its executor, at once if it does not do so itself."""
        node.link.close()
        process = self._processes.pop(node.name, None)
        if process is not None:
            _end(process, 0.0)

    def close(self) -> None:
        """End all; ranks get a moment to end in order."""
        for process in self._processes.values():
            _end(process, _END_S)
        self._processes.clear()

    def pid(self, name: str) -> int:
        """Process of a node's executor (for drills)."""
        process = self._processes.get(name)
        return process.pid if process is not None else 0


def _end(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
