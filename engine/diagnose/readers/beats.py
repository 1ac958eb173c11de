"""Heartbeats: what each rank said it was doing, and when it was last heard.

JSON lines with a time, a rank, a step and a phase, in one file or one a rank. A wait counts
only when it has lasted; a rank whose beats stop while the others' go on is silent, which is
evidence.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.diagnose.readers.files import FileFault, read_chunks
from engine.diagnose.readers.job import WORLD_LIMIT, Job
from engine.diagnose.readers.names import rank_of_name
from engine.diagnose.waits import Waiting

HANG_S = 5.0
"""A state that is younger is work in progress, not a hang."""
_GONE_ON = 2
"""Steps that others cannot make while a rank of their job only stands still."""
_LINE = 1 << 16
_DIRECTION = (
    (re.compile(r"recv\w*?[_-]?f", re.I), ("pp", -1)),
    (re.compile(r"recv\w*?[_-]?b", re.I), ("pp", 1)),
    (re.compile(r"send\w*?[_-]?f", re.I), ("pp", 1)),
    (re.compile(r"send\w*?[_-]?b", re.I), ("pp", -1)),
)
_COLLECTIVE = re.compile(
    r"reduce|gather|scatter|broadcast|barrier|all_?to_?all|sync|comm|unshard|wait", re.I
)
_AXES = (
    (re.compile(r"(?:^|[_\W])(?:tp|tensor|sp)", re.I), "tp"),
    (re.compile(r"(?:^|[_\W])(?:dp|fsdp|data_?par|zero|grad)", re.I), "dp"),
    (re.compile(r"(?:^|[_\W])(?:pp|pipe)", re.I), "pp"),
    (re.compile(r"(?:^|[_\W])(?:cp|context)", re.I), "cp"),
    (re.compile(r"(?:^|[_\W])(?:ep|expert)", re.I), "ep"),
)


class Beat(NamedTuple):
    """A rank's last state: when heard, since when in it."""

    rank: int
    time: float
    since: float
    step: int
    phase: str
    microbatch: int
    file: str


def read_beats(paths: Iterable[Path]) -> tuple[dict[int, Beat], list[tuple[str, str]]]:
    """The last beat of every rank, and what could not be read (file, why)."""
    last: dict[int, Beat] = {}
    faults: list[tuple[str, str]] = []
    for path in paths:
        named = rank_of_name(path.name)
        own = -1 if named is None else named
        bad = 0
        try:
            for line in _lines(path):
                beat = _beat(line, own, path)
                if beat is None:
                    bad += 1
                    continue
                held = last.get(beat.rank)
                if held is not None and _state(held) == _state(beat):
                    beat = beat._replace(since=min(held.since, beat.since))
                if held is None or beat.time >= held.time:
                    last[beat.rank] = beat
        except FileFault as fault:
            faults.append((str(path), str(fault)))
        if bad > 1:  # a torn last line is what a kill leaves
            faults.append((str(path), f"{bad} lines are no heartbeats"))
    return last, faults


def beat_waits(beats: Mapping[int, Beat], job: Job) -> dict[int, Waiting]:
    """Rank -> what it waits for by its last phase; needs the job's degrees."""
    if not beats:
        return {}
    newest = max(beat.time for beat in beats.values())
    states = {}
    for rank, beat in beats.items():
        gap = newest - beat.time
        age = newest - beat.since
        where = f"step {beat.step} {beat.phase} microbatch {beat.microbatch}"
        silent = gap > HANG_S
        if silent or age < HANG_S:
            states[rank] = Waiting(
                rank, frozenset(), where, gap if silent else age, beat.file, silent
            )
            continue
        states[rank] = _targets(beat, beats, job, where, age)
    if not any(state.waits_for or state.lost for state in states.values()):
        return {}
    return states


def _targets(beat: Beat, beats: Mapping[int, Beat], job: Job, where: str, age: float) -> Waiting:
    rank = beat.rank
    for pattern, (axis, step) in _DIRECTION:
        if pattern.search(beat.phase):
            line = job.group(axis, rank)
            if not line:
                return _likely(beat, beats, where, age)
            index = (line.index(rank) + step) % len(line)
            return Waiting(rank, frozenset({line[index]}), where, age, beat.file)
    if not _COLLECTIVE.search(beat.phase):
        return Waiting(rank, frozenset(), where, age, beat.file)
    axis = next((axis for pattern, axis in _AXES if pattern.search(beat.phase)), "")
    group = job.group(axis, rank) if axis else tuple(range(job.world))
    if not group:
        return _likely(beat, beats, where, age)
    others = {r for r in group if r != rank}
    same = {r for r in others if r in beats and _state(beats[r]) == _state(beat)}
    passed = {r for r in others if r in beats and _position(beats[r]) > _position(beat) and axis}
    return Waiting(
        rank, frozenset(others - same or others), where, age, beat.file,
        parted_from=frozenset(passed),
    )  # fmt: skip


def _likely(beat: Beat, beats: Mapping[int, Beat], where: str, age: float) -> Waiting:
    """Of a rank that waits for nobody knows whom: those that fell silent, lag, or work alone.

    Whoever waits as well may be in a group of its own and is no target; with no target the rank
    stays a waiter without a culprit.
    """
    newest = max(one.time for one in beats.values())
    targets = {
        other.rank
        for other in beats.values()
        if other.rank != beat.rank
        and (
            newest - other.time > HANG_S
            or other.step < beat.step
            or (newest - other.since >= HANG_S and not _talks(other.phase))
        )
    }
    return Waiting(beat.rank, frozenset(targets), where, age, beat.file, lost=not targets)


def _talks(phase: str) -> bool:
    return bool(_COLLECTIVE.search(phase)) or any(p.search(phase) for p, _ in _DIRECTION)


def gone_on_without(beats: Mapping[int, Beat]) -> list[Beat]:
    """Last beats of ranks that fell silent while all others made steps."""
    newest = max((beat.time for beat in beats.values()), default=0.0)
    silent = [b for b in beats.values() if newest - b.time > HANG_S]
    lively = [b.step for b in beats.values() if newest - b.time <= HANG_S]
    if not lively or 2 * len(silent) >= len(beats):
        return []
    return [b for b in silent if b.step + _GONE_ON <= min(lively)]


def _state(beat: Beat) -> tuple[int, str, int]:
    return beat.step, beat.phase, beat.microbatch


def _position(beat: Beat) -> int:
    """Steps are comparable between ranks, phases within a step are not."""
    return beat.step


def _lines(path: Path) -> Iterable[bytes]:
    carry = b""
    for chunk in read_chunks(path, chunk=1 << 18):
        *whole, carry = (carry + chunk).split(b"\n")
        yield from (line for line in whole if line)
        if len(carry) > _LINE:
            raise FileFault(f"holds a line longer than {_LINE} bytes")
    if carry:
        yield carry


def _beat(line: bytes, own: int, path: Path) -> Beat | None:
    try:
        value: Any = msgspec.json.decode(line)
        time = float(_first(value, "t", "time", "ts", "timestamp", default="no"))
        step = int(_first(value, "step", "iteration", "iter", default=-1))
        phase = str(_first(value, "phase", "state", "action", "section", default=""))[:200]
        rank = int(_first(value, "rank", "global_rank", default=own))
        micro = int(_first(value, "mb", "microbatch", "micro_batch", default=0))
        since = float(_first(value, "since", "phase_since", default=time))
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, AttributeError,
            OverflowError):  # fmt: skip
        return None
    if not (0 <= rank < WORLD_LIMIT and math.isfinite(time) and math.isfinite(since)):
        return None
    return Beat(rank, time, since, step, phase, micro, str(path))


def _first(value: Mapping[str, Any], *keys: str, default: Any) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), default)
