"""What a node tells its driver, periodically and when something happens (paper 4.1, 4.2).

One noun, one decoder. A message may come from anywhere the job's network reaches: it is refused
when it is too large, malformed, of another job's nodes, or older than what is known already.
"""

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.errors import TraceError
from engine.spec.base import Noun, Size

MAX_BYTES = 1 << 20
_Text = Annotated[str, Meta(max_length=256)]
_Line = Annotated[str, Meta(max_length=4000)]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]

Health = Literal["runs", "starved", "stopped", "silent", "ended"]


class RankBeat(Noun, frozen=True, kw_only=True):
    """One rank of a node."""

    rank: Size
    pid: Size = 0
    health: Health = "runs"
    """starved: would run, but the processors are taken; stopped: by a signal; silent: its slot no
    longer changes though the process is there."""
    step: int = -1
    doing: _Text = ""
    """Outermost and innermost open span, as `step/wait`; empty before the first step."""
    age_s: float = 0.0
    """How long the outermost span has been open, by the node's own clock."""
    actions: Size = 0
    works: Annotated[tuple[tuple[int, float, float], ...], Meta(max_length=64)] = ()
    """Steps that ended since the last beat: step, seconds, seconds of own work."""
    code: int | None = None
    """Exit code once it has ended, negative for a signal."""


class Counters(Noun, frozen=True, kw_only=True):
    """Hardware of a node; totals, the driver takes differences. None: this node cannot say."""

    load: float = 0.0
    memory_free_bytes: Size = 0
    received_bytes: Size = 0
    sent_bytes: Size = 0
    """All network cards together, RDMA included, loopback left out."""
    gpus: Size = 0
    gpu_temperature: int | None = None
    """The hottest, in degrees Celsius."""
    ecc_uncorrected: int | None = None
    lost_gpus: Size = 0


class Heartbeat(Noun, frozen=True, kw_only=True):
    """One message of an executor."""

    node: _Name
    seq: Size
    """Counts up over the life of an executor."""
    boot: _Text = ""
    """Names this life of the executor: another one on the same node is another life."""
    address: _Text = ""
    pid: Size = 0
    attempt: int = -1
    """The start its ranks belong to; -1 = it has none."""
    token: Size = 0
    """The highest driver token it has obeyed."""
    state: Literal["warming", "ready", "running", "leaving"] = "warming"
    warm_s: float = 0.0
    """How long its nursery took to import torch."""
    wall_s: float = 0.0
    """Its wall clock, to show how far it is off; never used for liveness."""
    ranks: Annotated[tuple[RankBeat, ...], Meta(max_length=4096)] = ()
    counters: Counters | None = None
    error: _Line = ""
    """Last line of a rank's log that tells of trouble."""
    answers: Annotated[dict[str, _Line], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    """Orders that were carried out since the last beat: id -> what came of it."""


_DECODER = msgspec.json.Decoder(Heartbeat)


def encode_beat(beat: Heartbeat) -> bytes:
    """As it travels."""
    return msgspec.json.encode(beat)


def decode_beat(data: bytes, *, nodes: Collection[str] | None = None) -> Heartbeat:
    """A message from the network; TraceError says why it is refused.

    nodes  the job's nodes; None takes any well-formed name
    """
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes is beyond the limit of {MAX_BYTES}")
        beat = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TraceError(
            f"a heartbeat was refused: {str(error)[:200]}",
            remedy="look for a program that writes to this job's Redis and is none of its nodes",
        ) from None
    if nodes is not None and beat.node not in nodes:
        raise TraceError(
            f"a heartbeat of {beat.node!r} was refused: it is no node of this job",
            remedy="let each job have a Redis, or a password, of its own",
        )
    return beat
