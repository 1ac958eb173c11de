"""Timed segments of a foreign job: JSON lines with step, segment and duration, one file a rank.

Any framework's timers can be written so: {"step", "seg" (or "name", "phase"), "dur_ms" (or
"dur_us", "dur_s", "duration_ms")}. Segment names are sorted into own work and waiting by their
words.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.diagnose.parts import PARTS
from engine.diagnose.readers.files import FileFault, read_limited
from engine.diagnose.readers.names import rank_of_name

_LIMIT = 1 << 30
_LONGEST = 1e9
"""Seconds: beyond 30 years a duration is none."""
_UNITS = (
    ("dur_ms", 1e-3), ("duration_ms", 1e-3), ("dur_us", 1e-6), ("dur_ns", 1e-9),
    ("dur_s", 1.0), ("duration_s", 1.0), ("seconds", 1.0),
)  # fmt: skip
_WORDS = (
    (re.compile(r"gc\b|garbage", re.I), "gc"),
    (re.compile(r"send|recv|p2p|pipe", re.I), "wait_pp"),
    (re.compile(r"(?:tp|tensor).*(?:reduce|gather|scatter|comm)", re.I), "wait_tp"),
    (re.compile(r"(?:dp|fsdp|grad|param).*(?:reduce|gather|scatter|sync|comm)", re.I), "wait_dp"),
    (
        re.compile(r"reduce|gather|scatter|barrier|broadcast|all_?to_?all|wait|sync", re.I),
        "wait_other",
    ),
    (re.compile(r"bwd|backward", re.I), "backward"),
    (re.compile(r"fwd|forward", re.I), "forward"),
    (re.compile(r"data|load|batch", re.I), "data"),
    (re.compile(r"clip|norm", re.I), "clip"),
    (re.compile(r"opt|adam|update", re.I), "optimizer"),
    (re.compile(r"eval|valid", re.I), "eval"),
    (re.compile(r"ckpt|checkpoint|save", re.I), "checkpoint"),
)


class Segments(NamedTuple):
    """seconds[part] is [ranks, steps]."""

    ranks: NDArray[np.int32]
    steps: NDArray[np.int64]
    seconds: dict[str, NDArray[np.float32]]


def part_of_segment(name: str) -> str:
    """The part of the step that a foreign segment's name means."""
    return next((part for pattern, part in _WORDS if pattern.search(name)), "other")


def read_segments(paths: Iterable[Path]) -> tuple[Segments | None, list[tuple[str, str]]]:
    """All ranks' segments, and what could not be read (file, why)."""
    sums: dict[int, dict[tuple[str, int], float]] = {}
    faults: list[tuple[str, str]] = []
    for path in paths:
        rank = rank_of_name(path.name)
        if rank is None:
            faults.append((str(path), "its name does not tell a rank"))
            continue
        try:
            sums[rank] = _sums(read_limited(path, _LIMIT))
        except FileFault as fault:
            faults.append((str(path), str(fault)))
    sums = {rank: cells for rank, cells in sums.items() if cells}
    if not sums:
        return None, faults
    return _arrays(sums), faults


def _sums(data: bytes) -> dict[tuple[str, int], float]:
    cells: dict[tuple[str, int], float] = defaultdict(float)
    parts: dict[str, str] = {}
    bad = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            value: Any = msgspec.json.decode(line)
            name = str(value.get("seg") or value.get("name") or value.get("phase") or "")
            unit, scale = next((u, s) for u, s in _UNITS if u in value)
            part = parts.setdefault(name, part_of_segment(name))
            step, seconds = int(value["step"]), float(value[unit]) * scale
            if not 0 <= seconds < _LONGEST or abs(step) >> 62:
                raise ValueError("no time of a step")
            cells[part, step] += seconds
        except (msgspec.DecodeError, RecursionError, StopIteration, KeyError, TypeError,
                ValueError, AttributeError, OverflowError):  # fmt: skip
            bad += 1
    if bad > 1 and not cells:
        raise FileFault("holds no timed segments")
    return cells


def _arrays(sums: dict[int, dict[tuple[str, int], float]]) -> Segments:
    ranks = np.array(sorted(sums), np.int32)
    # a step that some rank has not finished would show as a slow one on the others
    whole = set.intersection(*({step for _, step in cells} for cells in sums.values()))
    steps = sorted(whole)[:-1] if len(whole) > 3 else sorted(whole)
    column = {step: index for index, step in enumerate(steps)}
    seconds = {part: np.zeros((len(ranks), len(steps)), np.float32) for part in PARTS}
    for row, rank in enumerate(ranks.tolist()):
        for (part, step), value in sums[rank].items():
            if step in column:
                seconds[part][row, column[step]] += value
    return Segments(ranks, np.array(steps, np.int64), seconds)
