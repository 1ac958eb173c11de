"""How a rank that fails tells its driver why: one small JSON file per rank in the run folder."""

import time
from pathlib import Path

import msgspec

from engine.comm.lost import PeerLost
from engine.errors import EngineError, RunFailed
from engine.spec.base import Noun

_LIMIT = 1 << 16
_LONGEST = 4000
"""Characters kept of a text, so that a record always fits the limit."""


class BadNumbers(RunFailed):
    """The loss or gradient norm of a step is not finite; all ranks see it alike."""

    def __init__(self, step: int, samples: int, loss: float, norm: float) -> None:
        """`step` is how many updates were done before; people read it counted from one."""
        self.step = step
        super().__init__(
            f"step {step + 1}: loss {loss}, gradient norm {norm}: not finite; its samples are "
            f"{step * samples} to {(step + 1) * samples - 1} of the run's order",
            remedy="lower optimizer.lr, or resume from the last checkpoint with other data",
        )


class Mismatch(Noun, frozen=True, kw_only=True):
    """Replicas computed different numbers from the same input, as one rank saw it.

    Places are (action, number within it), in the order in which results follow from each other.
    """

    step: int
    """Updates that had been made."""
    differs_at: tuple[int, int] | None
    """Where the rank's numbers first were not those of most replicas."""
    changed_at: tuple[int, int] | None
    """Where its numbers first were others when it computed the same again."""
    chunks: int
    replica: int
    replicas: int

    def where(self, place: tuple[int, int]) -> str:
        """A place in words."""
        action, chunks = place[0], self.chunks
        if action == 0:
            return "in the copy of the parameters"
        if action <= chunks:
            return f"in the forward of chunk {action - 1}"
        if action <= 2 * chunks:
            return f"in the backward of chunk {2 * chunks - action}"
        return "in the gradients"


class Corrupted(RunFailed):
    """Replicas that compute the same got different numbers: silent data corruption."""

    def __init__(self, seen: Mismatch) -> None:
        self.seen = seen
        super().__init__(
            f"after step {seen.step}: {seen.replicas} replicas computed one micro-batch and do not "
            "agree on the numbers",
            remedy="go on from the last checkpoint without the node named; run `msctl selfcheck "
            "--level full` on it",
        )


class RankFailure(Noun, frozen=True, kw_only=True):
    """Why a rank ended."""

    rank: int
    kind: str
    """The error's kind in engine/errors.py, or `Exception` for a bug."""
    what: str
    remedy: str = ""
    lost_peer: bool = False
    """The rank only noticed that another one was gone."""
    bad_step: int = -1
    """The step whose numbers were not finite; -1 = it was something else."""
    mismatch: Mismatch | None = None
    """Set if replicas did not agree."""
    attempt: int = 0
    """The start of the job in which it happened."""
    t_s: float = 0.0
    """Wall time, to tell the first failure from those it caused."""


def failure_of(rank: int, error: Exception, *, attempt: int = 0) -> RankFailure:
    """An exception as the record of a rank's end."""
    if isinstance(error, EngineError):
        kind, what, remedy = kind_of(error), error.what, error.remedy
    else:
        kind, what, remedy = "Exception", f"{type(error).__name__}: {error}", ""
    return RankFailure(
        rank=rank, kind=kind, what=what[:_LONGEST], remedy=remedy[:_LONGEST],
        lost_peer=isinstance(error, PeerLost), attempt=attempt, t_s=time.time(),
        bad_step=error.step if isinstance(error, BadNumbers) else -1,
        mismatch=error.seen if isinstance(error, Corrupted) else None,
    )  # fmt: skip


def kind_of(error: EngineError) -> str:
    """The name of the error's kind in engine/errors.py, whatever subclass was raised."""
    kinds = (kind for kind in type(error).__mro__ if kind.__module__ == EngineError.__module__)
    return next(kinds).__name__


def write_failure(folder: Path, failure: RankFailure) -> None:
    """Leave the reason for the driver."""
    path = folder / "errors" / f"rank-{failure.rank:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(failure))


def read_failures(folder: Path) -> list[RankFailure]:
    """Reasons left by the ranks of the last start; unreadable ones are skipped."""
    found = []
    for path in sorted((folder / "errors").glob("rank-*.json")):
        try:
            with path.open("rb") as file:
                found.append(msgspec.json.decode(file.read(_LIMIT), type=RankFailure))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError):
            continue
    return found


def clear_failures(folder: Path) -> None:
    """Forget the reasons of an earlier start."""
    for path in (folder / "errors").glob("rank-*.json"):
        path.unlink(missing_ok=True)
