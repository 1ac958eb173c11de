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
_GROUP = re.compile(r"\[PG (?:ID )?(\d+)(?: PG GUID (\w+))?(?:\((\w+)\))?")

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


def is_timeout(text: str) -> bool:
    """Whether a wake is a time-out, so that somebody waited."""
    return "imeout" in text or "timed out" in text or "atchdog" in text


def read_stall(rank: int, text: str, *, file: str, line: int) -> Stall | None:
    """The collective a watchdog line speaks of, None if it names none."""
    group = _GROUP.search(text)
    name = _name(group) if group else ""
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


def _name(group: re.Match[str]) -> str:
    """What is the same on all members: the number of all groups and the description, if there."""
    number, everywhere, description = group.groups()
    return f"{everywhere or ''}({description or ''})" if everywhere or description else number


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
    """Reports of voices that wait in different collectives of one group.

    Of one file, or of any files where the group's name is the same everywhere and nowhere else.
    """
    groups: dict[tuple[str, str], dict[int, Stall]] = {}
    for stall in stalls:
        if stall.op:
            name = _known_group(stall, stalls)
            for place in (stall.file, "") if _GLOBAL.match(name) else (stall.file,):
                groups.setdefault((place, name), {}).setdefault(stall.voice, stall)
    for (place, name), voices in groups.items():
        same = _same_number(voices.values(), at_least=0 if name else _UNLIKELY)
        if same:
            return same
        ops = Counter((s.seq, s.op) for s in voices.values())
        if place and len(ops) > 1 and ops.most_common(1)[0][1] <= max(1, len(voices) // 2):
            return tuple(voices.values())
    return ()


_GLOBAL = re.compile(r"\w+\(")
_PAIRED = frozenset({"SEND", "RECV", "COALESCED", "UNKNOWN"})
_EQUAL = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
"""Calls whose members all give the same number of elements."""
_UNLIKELY = 1000
"""Old lines name no group. Two groups are at the same number by chance at their beginning only."""


def _same_number(voices: Iterable[Stall], *, at_least: int) -> tuple[Stall, ...]:
    """Reports of one group and number that name different calls or sizes: no vote is needed."""
    by_seq: dict[int, list[Stall]] = {}
    for stall in voices:
        if stall.seq >= at_least and stall.op not in _PAIRED:
            by_seq.setdefault(stall.seq, []).append(stall)
    for found in by_seq.values():
        sizes = {s.numel for s in found if s.numel >= 0}
        if len({s.op for s in found}) > 1 or (len(sizes) > 1 and found[0].op in _EQUAL):
            return tuple(found)
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
