"""What a run's folder says beside its events: resolved recipe, metrics, how it ended.

All of it is optional here: a diagnosis must not fail because a file is missing or torn.
"""

import contextlib
import math
import stat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.errors import EngineError
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe

_LIMIT = 256 << 20
_INCIDENTS = 1000


class Metric(msgspec.Struct):
    """One line of metrics.jsonl; what cannot be a number is None."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    mfu: float | None = None


class Incident(msgspec.Struct):
    """What the driver saw when a fault stopped the job."""

    kind: str = ""
    what: str = ""
    remedy: str = ""
    ranks: tuple[int, ...] = ()
    step: int | None = None
    confidence: float = 0.5


class _Recovery(msgspec.Struct):
    incident: Incident


class Record(NamedTuple):
    """A run's own account of itself."""

    recipe: Recipe | None
    metrics: tuple[Metric, ...]
    result: dict[str, Any]
    incident: Incident | None = None
    """The folder is that of one incident: what the driver saw."""
    mended: tuple[Incident, ...] = ()
    """Incidents of the run that it came back from, oldest first."""

    @property
    def mfu(self) -> float | None:
        """Mean MFU (0..1) of the steps after the first, None if it was not measured."""
        known = [m.mfu for m in self.metrics[1:] if m.mfu is not None and math.isfinite(m.mfu)]
        return sum(known) / len(known) if known and sum(known) > 0 else None


def read_record(folder: Path) -> Record:
    """Whatever can be read of recipe.toml, metrics.jsonl and result.json."""
    recipe = None
    try:
        if (folder / "recipe.toml").is_file():
            recipe = load_recipe(folder / "recipe.toml")
    except (EngineError, OSError):
        recipe = None
    past = sorted((folder / "incidents").glob("*"))[:_INCIDENTS]
    mended = tuple(found for path in past if (found := read_incident(path)) is not None)
    result = read_result(folder)
    return Record(recipe, _metrics(folder / "metrics.jsonl"), result, read_incident(folder), mended)


def read_incident(folder: Path) -> Incident | None:
    """What the driver noted in an incident's folder, None if it is none."""
    for name in ("incident.json", "recovery.json"):
        data = _bytes(folder / name, 1 << 20)
        if data is None:
            continue
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(data, type=_Recovery).incident
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(data, type=Incident)
    return None


def read_result(folder: Path) -> dict[str, Any]:
    """result.json as a plain mapping; empty if there is none or it is torn."""
    data = _bytes(folder / "result.json", 1 << 20)
    try:
        value = None if data is None else msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _metrics(path: Path) -> tuple[Metric, ...]:
    rows = []
    decoder = msgspec.json.Decoder(Metric)
    for line in (_bytes(path, _LIMIT) or b"").split(b"\n"):
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return tuple(rows)


def _bytes(path: Path, limit: int) -> bytes | None:
    """A small file; None if it is larger, shut, or a pipe that would keep its reader waiting."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            return None
        return path.read_bytes()
    except OSError:
        return None
