"""What a fault is told, what it returns, and how processes of a job are ended."""

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.faults.net import Network
from engine.processes import family_of

if TYPE_CHECKING:
    from bench.faults.campaign import Job

RANKS = 8
AGAIN_S = 120.0
"""Longest wait for another start of the ranks."""


class Struck(NamedTuple):
    """What was done, and what a driver that sees well says of it."""

    when: float
    """Seconds since 1970."""
    ranks: frozenset[int] = frozenset()
    node: str = ""
    """The rank or node to blame; neither: nobody."""
    evicts: str = ""
    """A node that has to be out of the job in the end."""
    kinds: tuple[str, ...] = ()
    """Kinds of incident that can be this fault; empty: any."""
    wrong: str = ""
    """What already went wrong while it was done."""
    measured: dict[str, float] = {}  # noqa: RUF012 - never changed


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    if pid > 1:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def kill_all(folder: Path) -> None:
    """End every process that names this folder on its command line, and all below it.

    Also those that write its checkpoints behind it, with the memory that they write from.
    """
    log = f'"log":"{folder}/'.encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:3] == [b"-m", b"engine.ckpt.flush"] and any(log in word for word in words[4:5]):
            kill(int(path.name), signal.SIGKILL)
            shutil.rmtree(words[3].decode(), ignore_errors=True)
        if str(folder).encode() in words and int(path.name) != os.getpid():
            for pid in family_of(int(path.name)):
                kill(pid, signal.SIGKILL)


class Hit(NamedTuple):
    """Where a fault goes."""

    job: "Job"
    net: Network
    rank: int
    node: str

    @property
    def place(self) -> int:
        """The node's place in the network."""
        return int(self.node.partition(".")[0].rpartition("-")[2])

    def nobody(self, when: float, *, wrong: str = "", **measured: float) -> Struck:
        """A fault after which nothing may be restarted."""
        return Struck(when, wrong=wrong, measured=measured)

    def rank_is(self, when: float) -> Struck:
        """The rank is to blame."""
        return Struck(when, ranks=frozenset({self.rank}))
