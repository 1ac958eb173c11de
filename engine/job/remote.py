"""A job whose executors run elsewhere and join through Redis: processes, Slurm tasks, pods.

Holds the lease, knows nodes by their beats, remembers for the next driver what was started. A
`Launcher` brings nodes about and takes them away; three of them exist.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from engine.comm.resp import Client, ServerSaidNo, parse_url
from engine.errors import MissingError
from engine.job.keeper import FILE, Join, find_or_start, has_keeper, is_keeper, write_join
from engine.job.lease import LEASE_S, Lease
from engine.job.link_redis import BeatHub, RedisNodeLink
from engine.job.nodes import Link, Node
from engine.job.processes import executor_of
from engine.job.server import Server, ServerLost
from engine.job.start import StartRecord
from engine.spec.recipe import Recipe

_STATE = "start"
_CLIENTS_PER_RANK, _CLIENTS_PER_NODE, _CLIENTS_OVER = 2, 3, 64
"""Connections to Redis: a rank has one for each thread that asked it something at once."""


class Launcher(Protocol):
    """Brings executors about."""

    @property
    def can_start(self) -> int:
        """Nodes that can be had anew within seconds."""

    def start(self, folder: Path, count: int) -> None:
        """Have so many nodes join the job of this folder."""

    def adopt(self, folder: Path) -> None:
        """An earlier driver had them join: know what it takes to replace and to stop them."""

    def replace(self, node: str, why: str) -> None:
        """Take a bad node out of use; another may come for it later."""

    def stop(self) -> None:
        """The job is over."""


class Kept:
    """The job's Redis as its keeper has it; another keeper takes over if that one was killed."""

    def __init__(self, folder: Path, job: str, host: str, join: Join) -> None:
        self._folder, self._job, self._host, self._join = folder, job, host, join

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._join.keeper_pid

    @property
    def is_alive(self) -> bool:
        """Whether the keeper runs; of one on another machine nothing is known, so yes."""
        return has_keeper(self._join)

    def restart(self) -> float:
        """Have another keeper; returns seconds. ServerLost if address or data are gone."""
        begin = time.monotonic()
        join = find_or_start(self._folder, self._job, self._host)
        if join.redis != self._join.redis:
            raise ServerLost(
                "the job's Redis is lost: its keeper was killed and its data are gone",
                remedy="start the run again: it goes on from its newest checkpoint",
            )
        self._join = join
        return time.monotonic() - begin

    def end(self) -> None:
        """The job is over: the keeper ends its server."""
        if self._join.machine == socket.gethostname() and is_keeper(self.pid):
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)


class RemotePlace:
    """The place of a job that joins through Redis."""

    def __init__(self, launcher: Launcher, *, host: str, lease_s: float = LEASE_S) -> None:
        self._launcher, self._host, self._lease_s = launcher, host, lease_s
        self._known: set[str] = set()
        self._kept: Kept | None = None
        self.hub: BeatHub | None = None

    @property
    def can_start(self) -> int:
        """Of the launcher."""
        return self._launcher.can_start

    @contextlib.contextmanager
    def store(self, recipe: Recipe, folder: Path) -> Iterator[Server | None]:
        """The job's Redis, which outlives this driver; the lease is taken here.

        NotInCharge if another driver has it.
        """
        job = f"msctl:{folder.resolve().name}"
        wish, is_new = recipe.train.store, not (folder / FILE).exists()
        if "://" in wish:
            join = Join(redis=wish, job=job)
            write_join(folder, join)
        else:
            join = find_or_start(folder, job, self._host)
        client = Client(parse_url(join.redis), io_s=2.0, patience_s=5.0)
        self._kept = Kept(folder, job, self._host, join) if join.keeper_pid else None
        try:
            _check_room(client, recipe)
        except MissingError:
            if self._kept is not None and is_new:  # ranks of an earlier driver may live by another
                self._kept.end()
            raise
        lease = Lease(client, job, length_s=self._lease_s)
        lease.take(within_s=2 * self._lease_s)
        self.hub, self._client, self._job = BeatHub(join.redis, job, lease), client, job
        try:
            yield Server(join.redis, self._kept)
        finally:
            self.hub.close()

    @property
    def token(self) -> int:
        """Of the lease."""
        return self.hub.lease.token if self.hub else 0

    def open(self, recipe: Recipe, folder: Path) -> list[Node]:
        """Nodes come by themselves; they are asked for unless they are there already."""
        record = self.recall()
        if record is None or record.over or not self._has_beats():
            self._launcher.start(folder, recipe.job.nodes + recipe.job.spares)
        else:
            self._launcher.adopt(folder)
        return []

    def newcomers(self) -> list[Node]:
        """Nodes that were heard for the first time."""
        assert self.hub is not None, "opened"
        if self.hub.error is not None:
            raise self.hub.error
        found = [name for name in self.hub.names() if name not in self._known and name != "?"]
        self._known |= set(found)
        return [Node(name, RedisNodeLink(self.hub, name)) for name in found]

    @property
    def is_deaf(self) -> bool:
        """Whether nobody can be heard now, because Redis is away."""
        return self.hub is not None and self.hub.is_down

    def start_node(self) -> Node:
        """One more; it comes when it comes."""
        raise MissingError(
            "nodes of this place join by themselves", remedy="wait for a newcomer instead"
        )

    def wait(self, links: Sequence[Link], within_s: float) -> None:
        """By the hub's bell."""
        assert self.hub is not None, "opened"
        self.hub.wait(within_s)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Many orders in one message to Redis."""
        assert self.hub is not None, "opened"
        return self.hub.together()

    def vouches(self, node: Node) -> bool:
        """Nobody here knows more than its beats say."""
        return False

    def evict(self, node: Node, why: str) -> None:
        """Out of this job, and out of the scheduler's use."""
        self._launcher.replace(node.name, why)

    def remember(self, record: StartRecord) -> None:
        """Keep what was started for the next driver; without Redis that has to wait."""
        assert self.hub is not None, "opened"
        with contextlib.suppress(MissingError):
            self.hub.lease.write(_STATE, msgspec.json.encode(record))

    def recall(self) -> StartRecord | None:
        """What the driver before this one started, if there was one."""
        reply = self._client.call(("GET", f"{self._job}:{_STATE}"))[0]
        if not isinstance(reply, bytes):
            return None
        try:
            return msgspec.json.decode(reply, type=StartRecord)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _has_beats(self) -> bool:
        """Whether anybody sends beats; waits for two of their periods at most."""
        assert self.hub is not None, "opened"
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            if self.hub.names():
                return True
            self.hub.wait(0.1)
        return False

    def close(self) -> None:
        """The job is over: nodes were told to end, the server goes too."""
        self._launcher.stop()
        if self._kept is not None:
            self._kept.end()


def _check_room(client: Client, recipe: Recipe) -> None:
    """MissingError if the job's Redis takes fewer clients than the job has.

    Seen too late, that is ranks and nodes that do not come, on any of thousands of machines.
    """
    try:
        reply = client.call(("INFO", "clients"))[0]
    except ServerSaidNo:
        return  # a hosted server that tells nobody
    found = re.search(rb"^maxclients:(\d+)", reply if isinstance(reply, bytes) else b"", re.M)
    nodes = recipe.job.nodes + recipe.job.spares
    need = _CLIENTS_PER_RANK * recipe.layout.world_size + _CLIENTS_PER_NODE * nodes + _CLIENTS_OVER
    if found and int(found[1]) < need:
        raise MissingError(
            f"the job's Redis takes {int(found[1])} clients, but {recipe.layout.world_size} ranks "
            f"on {nodes} nodes need {need}",
            remedy=f"`ulimit -n {need + 1000}` before `msctl train` (for a server of your own: "
            "its maxclients as well)",
        )


class NoLauncher:
    """Nodes are started by somebody else: torchrun, a script, a person."""

    can_start = 0

    def start(self, folder: Path, count: int) -> None:
        """They join by themselves."""

    def adopt(self, folder: Path) -> None:
        """They joined by themselves."""

    def replace(self, node: str, why: str) -> None:
        """It was told to end; nobody brings another."""

    def stop(self) -> None:
        """They were told to end."""


class ProcessLauncher:
    """Executors as processes that join through Redis: rehearsals, namespaces, tests."""

    can_start = 0

    def __init__(
        self, *, wrap: Callable[[str], list[str]] | None = None, comes_back: bool = False
    ) -> None:  # fmt: skip
        """`wrap(node)` gives words to put before a node's command, e.g. of a network namespace.

        With `comes_back` a node that was taken out joins anew under another name, as a repaired
        machine or a requeued task does.
        """
        self._wrap, self._comes_back = wrap, comes_back
        self._folder = Path()
        self._lives: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, folder: Path, count: int) -> None:
        """`node-0`, `node-1`, ..."""
        self._folder = folder
        for index in range(count):
            self._launch(f"node-{index}")

    def adopt(self, folder: Path) -> None:
        """Logs of executors tell how often each node has come back."""
        self._folder = folder
        for path in (folder / "log").glob("executor-*.log"):
            place, _, life = path.stem.removeprefix("executor-").partition(".")
            self._lives[place] = max(self._lives.get(place, 0), int(life) if life else 0)

    def _launch(self, name: str) -> None:
        log = self._folder / "log" / f"executor-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = self._wrap(name) if self._wrap else []
        folder = self._folder.absolute()  # as `executor_of` looks for it, from any place
        with log.open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [*words, sys.executable, "-m", "engine.job.join", str(folder), name],
                env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def replace(self, node: str, why: str) -> None:
        """End it, and whatever it left behind."""
        process = self.processes.pop(node, None)
        if process is not None:
            process.kill()
            process.wait()
        elif stray := executor_of(self._folder, node):  # an earlier driver's; its ranks die with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
        if self._comes_back:
            place = node.partition(".")[0]
            self._lives[place] = self._lives.get(place, 0) + 1
            self._launch(f"{place}.{self._lives[place]}")

    def stop(self) -> None:
        """They were told to end; those that do not are killed."""
        for process in self.processes.values():
            try:
                process.wait(timeout=12.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
