"""Flight-recorder dumps as waits: each rank's oldest open call against its peers.

Only the oldest unfinished call of a rank counts: later ones queue behind it on the device. A
rank waits for the members that have not come as far in that group; a rank whose oldest call was
finished by all others waits for nobody, and a rank that has enqueued less than its peers and
has nothing open neither.
"""

from collections.abc import Iterable, Mapping

from engine.diagnose.readers.flight import Call, Dump
from engine.diagnose.waits import Waiting


def flight_waits(
    dumps: Iterable[Dump], members: Mapping[str, tuple[int, ...]] | None = None
) -> dict[int, Waiting]:
    """Rank -> what it waits for; `members` adds group members that the dumps do not name."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups: dict[str, tuple[int, ...]] = dict(members or {})
    for dump in by_rank.values():
        for name, (_, ranks) in dump.groups.items():
            if ranks:
                groups[name] = ranks
    return {rank: _waiting(dump, by_rank, groups) for rank, dump in by_rank.items()}


def mismatches(dumps: Iterable[Dump]) -> list[tuple[str, int, dict[str, list[int]]]]:
    """Collectives that ranks called by different names: (group, number, name -> ranks)."""
    calls: dict[tuple[str, int], dict[str, list[int]]] = {}
    for dump in dumps:
        for call in dump.pending:
            if not call.point_to_point:
                names = calls.setdefault((call.group, call.seq), {})
                names.setdefault(_kind(call.name, call.sizes), []).append(dump.rank)
        for (group, seq), text in dump.finished.items():
            name, _, sizes = text.partition(" ")
            names = calls.setdefault((group, seq), {})
            names.setdefault(_kind(name, sizes), []).append(dump.rank)
    return [
        (group, seq, names)
        for (group, seq), names in sorted(calls.items(), key=lambda item: item[0][1])
        if len(names) > 1
    ]


def _kind(name: str, sizes: str) -> str:
    """What must be equal on all members: the operation, of an all-reduce also the size."""
    bare = name.split(":")[-1].strip("_")
    return f"{bare} {sizes}" if bare.startswith("all_reduce") or bare == "allreduce" else bare


def _waiting(
    dump: Dump, by_rank: Mapping[int, Dump], groups: Mapping[str, tuple[int, ...]]
) -> Waiting:
    if not dump.pending:
        behind = ", ".join(f"{n} in group {g}" for g, n in list(dump.enqueued.items())[:3])
        return Waiting(dump.rank, frozenset(), f"no open call (enqueued {behind})", 0.0, dump.file)
    oldest = min(dump.pending, key=lambda call: call.order)
    where = _place(dump, oldest)
    ranks = groups.get(oldest.group, ())
    if oldest.point_to_point:
        peers = _partners(dump, oldest, ranks)
        return Waiting(dump.rank, frozenset(peers), where, 0.0, dump.file)
    targets = {
        other
        for other in ranks
        if other != dump.rank and _is_behind(by_rank.get(other), oldest.group, oldest.seq)
    }
    return Waiting(dump.rank, frozenset(targets), where, 0.0, dump.file)


def _partners(dump: Dump, call: Call, ranks: tuple[int, ...]) -> set[int]:
    if call.peer is None or call.peer >= len(ranks):
        return set()
    return {ranks[call.peer]} - {dump.rank}


def _is_behind(other: Dump | None, group: str, seq: int) -> bool:
    """Whether a member has not reached a call: not enqueued it, or its device stands before it.

    A member without a dump counts as behind: that is why it has none.
    """
    if other is None:
        return True
    return other.enqueued.get(group, 0) < seq or other.completed.get(group, 0) < seq - 1


def _place(dump: Dump, call: Call) -> str:
    description = dump.groups.get(call.group, ("", ()))[0] or "group"
    return f"{call.name} number {call.seq} of {description} {call.group}"
