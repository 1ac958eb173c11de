"""What the watchdogs say side by side: who waits in which collective, who is silent.

A watchdog line is a wake and never the cause. Together they tell more: ranks that wait at
different numbers of one group have parted; a rank at another number than all others is the odd
one; ranks that do not report at all are the ones to look at.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from engine.diagnose.logs.places import rank_in

_WORK = re.compile(r"Work\w+\((?:SeqNum=(\d+), )?OpType=(\w+)(?:, NumelIn=(\d+))?")
_STATUS = re.compile(
    r"(?:work(?: sequence id)?: ?|Timeout at NCCL work: ?)(\d+).*?"
    r"last completed(?: NCCL)? work: ?(-?\d+)"
)
_GROUP = re.compile(r"\[PG (?:ID )?(\d+)(?: PG GUID \d+)?(?:\((\w+)\))?")

_WORLD_LIMIT = 1 << 20
"""Ranks; a line that names a larger one does not tell who is missing."""


class Stall(NamedTuple):
    """One rank's report of a collective that did not end."""

    rank: int
    voice: int
    """The rank that the line itself names; differs from `rank` in a file that quotes others."""
    group: str
    seq: int
    op: str
    numel: int
    file: str
    line: int
    text: str


class Crowd(NamedTuple):
    """What the reports say together."""

    stalls: tuple[Stall, ...]
    parted: tuple[Stall, ...]
    """Reports of one file and group that name different collectives."""
    odd: tuple[int, ...]
    """Ranks that wait elsewhere than nearly all others."""
    comparable: bool
    """The odd ranks wait in the same group as the others: their calls parted."""
    silent: tuple[int, ...]
    """Ranks of the world that report nothing."""
    world: int


def read_stall(rank: int, text: str, *, file: str, line: int) -> Stall | None:
    """The collective a watchdog line speaks of, None if it names none."""
    group = _GROUP.search(text)
    name = (group[2] or group[1]) if group else ""
    named = rank_in(text)
    voice = rank if named is None else named
    work = _WORK.search(text)
    if work is not None:
        numel = int(work[3]) if work[3] else -1
        return Stall(rank, voice, name, int(work[1] or -1), work[2], numel, file, line, text)
    status = _STATUS.search(text)
    if status is not None:
        return Stall(rank, voice, name, int(status[1]), "", -1, file, line, text)
    return None


def crowd(stalls: Iterable[Stall], reporting: Iterable[int], *, world: int) -> Crowd:
    """Put reports side by side; `reporting` are all ranks that wrote a wake of any kind."""
    listed = tuple(stalls)
    spoke = set(reporting) | {s.rank for s in listed}
    size = max(world, max(spoke, default=-1) + 1)
    if size > world:
        size = _guess_world(spoke)
    told = len(spoke) > 1 and size <= _WORLD_LIMIT
    silent = tuple(r for r in range(size) if r not in spoke) if told else ()
    odd, comparable = _odd(listed)
    return Crowd(listed, _parted(listed), odd, comparable, silent, size)


def _parted(stalls: tuple[Stall, ...]) -> tuple[Stall, ...]:
    """Reports, within one file, of voices that wait in different collectives of one group."""
    groups: dict[tuple[str, str], dict[int, Stall]] = {}
    for stall in stalls:
        if stall.op:
            group = (stall.file, _known_group(stall, stalls))
            groups.setdefault(group, {}).setdefault(stall.voice, stall)
    for voices in groups.values():
        ops = Counter((s.seq, s.op) for s in voices.values())
        if len(ops) > 1 and ops.most_common(1)[0][1] <= max(1, len(voices) // 2):
            return tuple(voices.values())
    return ()


def _odd(stalls: tuple[Stall, ...]) -> tuple[tuple[int, ...], bool]:
    """Ranks that wait elsewhere than at least nine in ten, and whether in the same group."""
    first: dict[int, Stall] = {}
    for stall in stalls:
        held = first.get(stall.rank)
        if held is None or (stall.op and not held.op):
            first[stall.rank] = stall
    places = Counter((s.seq, s.op) for s in first.values() if s.op)
    if len(first) < 8 or len(places) < 2:
        return (), False
    common, votes = places.most_common(1)[0]
    others = [s for s in first.values() if s.op and (s.seq, s.op) != common]
    if not others or len(others) > max(1, votes // 10):
        return (), False
    group = next(_known_group(s, stalls) for s in first.values() if (s.seq, s.op) == common)
    same = all(_known_group(s, stalls) == group and s.seq >= 0 for s in others)
    return tuple(sorted(s.rank for s in others)), same


def _known_group(stall: Stall, stalls: tuple[Stall, ...]) -> str:
    """The group a report belongs to; a line without one takes what its voice says elsewhere."""
    if stall.group:
        return stall.group
    near = (s for s in stalls if s.group and s.voice == stall.voice and s.file == stall.file)
    return next((s.group for s in near), "")


def _guess_world(ranks: set[int]) -> int:
    """The world that a set of ranks comes from: full nodes of eight beyond the first few."""
    if not ranks:
        return 0
    top = max(ranks) + 1
    if top <= 4:
        return top
    return (top + 7) // 8 * 8
