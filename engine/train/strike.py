"""When each fault of a drill came, in a small file per fault: by whoever injected it."""

import hashlib
import time
from pathlib import Path

import msgspec

from engine.spec.base import Noun

_FOLDER = "drills"
_LIMIT = 1 << 16


class Strike(Noun, frozen=True, kw_only=True):
    """A fault came."""

    fault: str
    time_s: float


def note_strike(run: Path, fault: str, *, in_s: float = 0.0) -> None:
    """Write down that it comes now, or in so many seconds."""
    folder = run / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{_name(fault)}-{count_strikes(run, fault)}"
    data = msgspec.json.encode(Strike(fault=fault, time_s=time.time() + in_s))
    try:
        with (folder / f"{name}.json").open("xb") as file:
            file.write(data)
    except FileExistsError:
        return


def count_strikes(run: Path, fault: str) -> int:
    """How often it has come in this run."""
    return len(list((run / _FOLDER).glob(f"{_name(fault)}-*.json")))


def _name(fault: str) -> str:
    return hashlib.sha256(fault.encode()).hexdigest()[:16]


def read_strikes(run: Path) -> dict[str, float]:
    """Fault -> when it first came, seconds since 1970."""
    found: dict[str, float] = {}
    for path in sorted((run / _FOLDER).glob("*.json")):
        try:
            with path.open("rb") as file:
                strike = msgspec.json.decode(file.read(_LIMIT), type=Strike)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        found.setdefault(strike.fault, strike.time_s)
    return found
