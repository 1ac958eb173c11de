"""How a rank that fails tells its driver why: one small JSON file per rank in the run folder."""

from pathlib import Path

import msgspec

from engine.spec.base import Noun

_LIMIT = 1 << 16


class RankFailure(Noun, frozen=True, kw_only=True):
    """Why a rank ended; kind is the error's class, RunFailed where a peer was lost."""

    rank: int
    kind: str
    what: str
    remedy: str = ""


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
            found.append(msgspec.json.decode(path.read_bytes()[:_LIMIT], type=RankFailure))
        except (msgspec.DecodeError, OSError):
            continue
    return found


def clear_failures(folder: Path) -> None:
    """Forget the reasons of an earlier start."""
    for path in (folder / "errors").glob("rank-*.json"):
        path.unlink(missing_ok=True)
