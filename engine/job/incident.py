"""The nouns of a fault: what was seen, what was decided, how the recovery went; and their files."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.spec.base import Noun, Ratio, Size, doc

FOLDER = "incidents"
_LIMIT = 1 << 20

Kind = Literal["crash", "bug", "input", "hang", "start", "node", "numbers", "spike", "slow",
               "corruption"]  # fmt: skip


class Incident(Noun, frozen=True, kw_only=True):
    """A fault as the driver saw it."""

    number: Size = 1
    kind: Annotated[Kind, doc("what sort of fault; bug: an exception, input: nothing to retry")]
    what: Annotated[str, doc("one sentence: who and what")]
    remedy: str = ""
    error: Annotated[str, doc("the kind of error that would end the run")] = "RunFailed"
    ranks: Annotated[tuple[int, ...], doc("culprits, as far as they are known")] = ()
    nodes: Annotated[tuple[str, ...], doc("their nodes")] = ()
    step: Annotated[int, doc("the newest step that had ended, -1 = none")] = -1
    signature: Annotated[str, doc("equal for faults that look the same")] = ""
    confidence: Ratio = 0.5
    attempt: Size = 0
    time_s: Annotated[float, doc("when it was noticed, seconds since 1970")] = 0.0


class Decision(Noun, frozen=True, kw_only=True):
    """What the policy makes of an incident."""

    kind: Literal["restart", "shrink", "wait", "bisect", "stop"]
    why: str
    evict: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    """Spares that replace the evicted, in order."""
    skip_step: int = -1
    """A step whose batch is left out from now on."""


class Recovery(Noun, frozen=True, kw_only=True):
    """An incident from its detection to the first new step; times are seconds after it."""

    incident: Incident
    decision: Decision | None = None
    detected_by: str = ""
    suspended_s: float = 0.0
    """Until the last rank of the old start had ended."""
    checked_s: float = 0.0
    started_s: float = 0.0
    """Until ranks were asked for."""
    stepped_s: float | None = None
    """Until the first step of the new start had ended; None if there was none."""
    resumed_from: int = 0
    """Step of the checkpoint that the new start continued from."""
    steps_lost: Size = 0
    """Steps that had been done and were done again."""
    verdict: str = ""
    """What `diagnose` made of the evidence."""


def incident_folder(run: Path, number: int) -> Path:
    """Where the evidence of an incident lies."""
    return run / FOLDER / f"{number:03d}"


def write_recovery(run: Path, recovery: Recovery) -> None:
    """Leave or renew the record of an incident."""
    folder = incident_folder(run, recovery.incident.number)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "recovery.tmp"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(recovery), indent=2) + b"\n")
    os.replace(fresh, folder / "recovery.json")


def read_recoveries(run: Path) -> list[Recovery]:
    """All incidents of a run, oldest first; unreadable records are left out."""
    found = []
    for path in sorted((run / FOLDER).glob("*/recovery.json")):
        try:
            with path.open("rb") as file:
                found.append(msgspec.json.decode(file.read(_LIMIT), type=Recovery))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found
