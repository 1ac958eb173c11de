"""What a driver tells an executor, and how executors are told who they are.

Every order carries the driver's token. An executor that has obeyed a higher one refuses it: a
driver that was taken for dead and wakes up again changes nothing any more.
"""

from typing import Literal

import msgspec

from engine.errors import TraceError
from engine.spec.base import NonNegative, Noun, Size
from engine.train.task import RankTask

MAX_BYTES = 1 << 20

Op = Literal["start", "signal", "dump", "check", "agent", "slow", "clock", "end"]


class Order(Noun, frozen=True, kw_only=True):
    """One thing for an executor to do."""

    id: str
    token: Size
    op: Op
    task: RankTask | None = None
    """start: what the ranks are told."""
    ranks: tuple[int, ...] = ()
    """start: which to start; signal, slow: which are meant, all if empty."""
    signal: Size = 0
    level: Literal["passive", "light"] = "passive"
    """check: how closely to look."""
    run: str = ""
    """agent: the name of the check of all nodes that it takes part in."""
    value: NonNegative = 0.0
    """slow: share of the processor that the rank keeps; clock: seconds to be off."""


class ExecutorTask(Noun, frozen=True, kw_only=True):
    """What an executor is told when it starts: one line of JSON on its standard input."""

    node: str
    folder: str
    slots: Size
    """Ranks it may have to carry."""
    beat_s: NonNegative = 0.5
    link_fd: int = -1
    """A socket to the driver on this machine, or -1: it joins through Redis."""
    redis: str = ""
    """URL of the job's Redis with its password by file."""
    job: str = ""
    """The prefix of the job's keys there."""
    orphan_s: NonNegative = 600.0
    """Without ranks and without a driver it ends after so long."""


_DECODER = msgspec.json.Decoder(Order)


def decode_order(data: bytes) -> Order:
    """An order from the driver; TraceError for anything else."""
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes is beyond the limit of {MAX_BYTES}")
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TraceError(
            f"an order was refused: {str(error)[:200]}",
            remedy="look for a program that writes to this job's Redis and is not its driver",
        ) from None
