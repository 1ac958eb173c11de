"""Flight-recorder dumps of PyTorch: pickle 2.9 (NCCL) and 2.10, and the JSON dumper's form.

What a rank has enqueued and finished, group by group. NCCL dumps name members in `pg_config`;
gloo dumps do not, never move an entry past `scheduled` (only `retired` tells) and record no
send or receive.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.diagnose.readers.files import FileFault, cores, read_limited, size_of
from engine.diagnose.readers.unpickle import load_plain

_SIZE_LIMIT = 512 << 20
_ALONE = 8 << 20
"""Bytes below which starting processes costs more than it saves."""
_TEXT, _SHAPES = 200, 64
_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl|gz|trace|dump))*$")
_PEER = re.compile(r"(?:send|recv)\w* (\d+)(?:->|<-)(\d+)")


class Call(NamedTuple):
    """One recorded operation that has not finished."""

    order: int
    group: str
    seq: int
    name: str
    point_to_point: bool
    peer: int | None
    """Index in the group of the other side."""
    sizes: str
    frames: tuple[str, ...]


class Dump(NamedTuple):
    """What one rank's dump says."""

    rank: int
    file: str
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    """Group name -> description and members, where the dump has them."""
    enqueued: Mapping[str, int]
    completed: Mapping[str, int]
    pending: tuple[Call, ...]
    finished: Mapping[tuple[str, int], str]
    """(group, number) -> operation and sizes of recorded finished collectives."""


def dump_rank(path: Path) -> int | None:
    """The rank that a file name ends with: `_dump_12`, `rank_3.json`, `nccl_trace_rank_7`."""
    found = _RANK.search(path.name)
    return int(found[1]) if found else None


def read_dumps(paths: Sequence[Path]) -> Iterator[tuple[Path, "Dump | str"]]:
    """Each dump, or why it cannot be read; on several cores where there is much to read."""
    if cores() < 2 or len(paths) < 2 or sum(map(size_of, paths)) < _ALONE:
        yield from zip(paths, map(_outcome, paths), strict=True)
        return
    with futures.ProcessPoolExecutor(min(cores(), len(paths))) as pool:
        yield from zip(paths, pool.map(_outcome, paths, chunksize=4), strict=True)


def _outcome(path: Path) -> "Dump | str":
    rank = dump_rank(path)
    if rank is None:
        return "its name does not end with a rank"
    try:
        return read_dump(path, rank)
    except FileFault as fault:
        return str(fault)


def read_dump(path: Path, rank: int) -> Dump:
    """Read one dump of either form; FileFault says why not."""
    data = read_limited(path, _SIZE_LIMIT)
    if not data:
        raise FileFault("is empty")
    value = _json(data) if data.lstrip()[:1] == b"{" else load_plain(data)
    if not isinstance(value, dict) or not isinstance(value.get("entries", []), list):
        raise FileFault("is no flight-recorder dump: no `entries` list")
    try:
        return _dump(path, rank, value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise FileFault(f"is no flight-recorder dump: {type(error).__name__} {error}") from None


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileFault(f"is no JSON: {error}") from None


def _dump(path: Path, rank: int, value: dict[str, Any]) -> Dump:
    entries = [e for e in value.get("entries", []) if isinstance(e, dict)]
    groups = {}
    for name, config in (value.get("pg_config") or {}).items():
        if name != "":
            groups[_text(name)] = (_text(config.get("desc")), _members(config.get("ranks")))
    _name_default(groups, value.get("pg_config") or {}, entries)
    local = _local_names(entries, groups, value.get("pg_status") or {})
    enqueued: dict[str, int] = {}
    completed: dict[str, int] = {}
    for number, status in (value.get("pg_status") or {}).items():
        name = local.get(_text(number))
        if name is not None:
            enqueued[name] = _int(status.get("last_enqueued_collective"))
            completed[name] = _int(status.get("last_completed_collective"))
    pending, finished = [], {}
    said = _Said()
    for order, entry in enumerate(entries):  # nearly all are finished: those are read quickly
        group = _group(entry)
        if group not in groups:
            groups[group] = (_description(entry), ())
        is_finished = _is_finished(entry)
        if not is_finished:
            pending.append(_call(order, entry))
        if entry.get("is_p2p"):
            continue
        seq = _int(entry.get("collective_seq_id"))
        if is_finished:
            finished[group, seq] = said.of(entry.get("profiling_name"), entry.get("input_sizes"))
            if seq > completed.get(group, 0):
                completed[group] = seq
        if seq >= enqueued.get(group, 0):
            enqueued[group] = seq
        completed.setdefault(group, seq - 1)
    return Dump(rank, str(path), groups, enqueued, completed, tuple(pending), finished)


def _name_default(
    groups: dict[str, tuple[str, tuple[int, ...]]], configs: Mapping[Any, Any],
    entries: Iterable[Mapping[str, Any]],
) -> None:  # fmt: skip
    """gloo lists its groups under an empty name: with only one group it can be but that one."""
    config = configs.get("")
    names = {_group(entry): _description(entry) for entry in entries}
    if isinstance(config, dict) and len(names) == 1 and not groups:
        ((name, description),) = names.items()
        groups[name] = (description, _members(config.get("ranks")))


class _Said:
    """Names and sizes of calls as text: a dump repeats few of them thousands of times."""

    def __init__(self) -> None:
        self._known: dict[object, str] = {}

    def of(self, name: object, sizes: Any) -> str:
        """`all_reduce [[64, 64]]`."""
        try:
            key = (name, tuple(map(tuple, sizes)))
            text = self._known.get(key)
        except TypeError:  # something nested deeper, or None: seldom, and not kept
            return f"{_text(name)} {_sizes(sizes)}"
        if text is None:
            text = self._known[key] = f"{_text(name)} {_sizes(sizes)}"
        return text


def _group(entry: Mapping[str, Any]) -> str:
    return _text((entry.get("process_group") or ["?"])[0])


def _call(order: int, entry: Mapping[str, Any]) -> Call:
    point = bool(entry.get("is_p2p"))
    name = _text(entry.get("profiling_name"))
    peer = None
    found = _PEER.search(name)
    if found is not None:
        peer = int(found[2])
    seq = _int(entry.get("p2p_seq_id" if point else "collective_seq_id"))
    frames = tuple(
        f"{_text(f.get('filename'))}:{_text(f.get('line'))} {_text(f.get('name'))}"
        for f in (entry.get("frames") or [])[:12]
        if isinstance(f, dict)
    )
    sizes = _sizes(entry.get("input_sizes"))
    return Call(order, _group(entry), seq, name, point, peer, sizes, frames)


def _is_finished(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _description(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group") or []
    return _text(group[1]) if len(group) > 1 else ""


def _text(value: Any) -> str:
    """A name or a number as text; nothing of what a dump may nest instead of it."""
    if isinstance(value, str):
        return value[:_TEXT]
    return str(value) if isinstance(value, (int, float)) else ""


def _sizes(value: Any) -> str:
    """Shapes of a call's tensors, `[[64, 64], [8]]`, as far as a line needs them."""
    if not isinstance(value, (list, tuple)):
        return _text(value)
    shapes = [_shape(shape) for shape in value[:_SHAPES]]
    return f"[{', '.join(shapes)}]"[:_TEXT]


def _shape(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return "?"
    return f"[{', '.join([str(n) if type(n) is int else '?' for n in value[:_SHAPES]])}]"


def _members(value: Any) -> tuple[int, ...]:
    """`[0, 2]`, as text or as a list."""
    if isinstance(value, str):
        return tuple(int(n) for n in re.findall(r"\d+", value)[: 1 << 20])
    return tuple(int(n) for n in value or ())


def _int(value: Any) -> int:
    return int(value) if value is not None else -1


def _local_names(
    entries: Iterable[Mapping[str, Any]], groups: Mapping[str, Any], status: Mapping[str, Any]
) -> dict[str, str]:
    """Local group number (`pg_status`) -> group name.

    Entries carry both. Where a rank recorded nothing, both lists are in the order in which the
    groups were made, so they are laid side by side.
    """
    pairs = {e["pg_id"]: e["process_group"] for e in entries if e.get("process_group")}
    seen = {_text(number): _text(group[0]) for number, group in pairs.items()}
    names = [n for n in groups if n.isdigit()]
    numbers = [n for n in map(_text, status) if n.isdigit()]
    if len(names) == len(groups) == len(numbers):
        aligned = dict(zip(sorted(numbers, key=int), sorted(names, key=int), strict=True))
        if all(aligned.get(number) == name for number, name in seen.items()):
            return aligned
    return seen
