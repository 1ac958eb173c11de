"""NCCL RAS output: which ranks of a communicator launched fewer operations than the others.

RAS lists the smaller side, which may be the side that is ahead; here the side with the smaller
count is the one that holds the others up. Text of `ncclras`, and the JSON form of newer
versions.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.diagnose.readers.files import FileFault, read_limited
from engine.diagnose.readers.job import WORLD_LIMIT

_LIMIT = 64 << 20
_COUNT = re.compile(r"^\s*(\d{1,7}) ranks? (?:have|has) launched up to operation (\d{1,19})\b")
_RANK = re.compile(r"^\s*Rank (\d{1,7}) -- GPU (\S+) managed by process (\d+) on node (\S+)")
_COMM = re.compile(r"#?(\d+-\d+)?\s*\(?([0-9a-f]{8,16})\)?")
_DEAD = re.compile(r"^\s*Process (\d+) on node (\S+) managing GPU(?:s)? (.+)")
_SIZE = re.compile(r"^\s*\d+\s+\d+\s+\d+\s+\d+\s+(\d{1,7})\s+\d+\s+\w+", re.MULTILINE)


class Lag(NamedTuple):
    """One communicator whose ranks differ."""

    communicator: str
    behind: tuple[int, ...]
    ahead: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    """(operation number, ranks), ascending."""
    node: str
    line: int


class Ras(NamedTuple):
    """What RAS says."""

    lags: tuple[Lag, ...]
    dead: tuple[tuple[str, str, int], ...]
    """(node, GPU, line) of processes that do not answer."""


def read_ras(path: Path) -> Ras:
    """Read RAS output of either form; FileFault if it is neither."""
    data = read_limited(path, _LIMIT)
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return _from_json(msgspec.json.decode(data))
        except (msgspec.DecodeError, RecursionError, TypeError, ValueError,
                AttributeError) as error:  # fmt: skip
            raise FileFault(f"is no RAS report: {error}") from None
    return _from_text(data.decode(errors="replace"))


def _from_text(text: str) -> Ras:
    size = max((int(n) for n in _SIZE.findall(text)), default=0)
    lags, dead = [], []
    counts: list[tuple[int, int]] = []
    listed: dict[int, list[int]] = {}
    node, start, name = "", 0, ""

    def close() -> None:
        if len(counts) > 1:
            lags.append(_lag(name, counts, listed, size, node, start))
        counts.clear()
        listed.clear()

    for number, line in enumerate(text.split("\n"), 1):
        count, rank, gone = _COUNT.match(line), _RANK.match(line), _DEAD.match(line)
        if count is not None:
            if not counts:
                start = number
            counts.append((int(count[2]), int(count[1])))
        elif rank is not None and counts:
            listed.setdefault(counts[-1][0], []).append(int(rank[1]))
            node = node or rank[4]
        elif gone is not None:
            dead.append((gone[2], gone[3].strip()[:40], number))
        elif line.lstrip().startswith("#") or not line.strip():
            if counts and (listed or line.lstrip().startswith("#")):
                close()
                node = ""
            found = _COMM.search(line)
            name = found[2] if found and line.strip() else name
    close()
    if not lags and not dead and "RAS" not in text and "ommunicator" not in text:
        raise FileFault("is no RAS report")
    return Ras(tuple(lags), tuple(dead))


def _lag(
    name: str,
    counts: list[tuple[int, int]],
    listed: dict[int, list[int]],
    size: int,
    node: str,
    line: int,
) -> Lag:
    """The ranks behind: listed ones of the smallest count, or all that are not listed as ahead."""
    ordered = sorted(counts)
    low = ordered[0][0]
    ahead = sorted(r for op, ranks in listed.items() if op > low for r in ranks)
    behind = sorted(listed.get(low, []))
    total = size or sum(n for _, n in counts)
    told = len(ahead) == sum(n for op, n in ordered if op > low)
    if not behind and ahead and told and total <= WORLD_LIMIT:
        behind = sorted(set(range(total)) - set(ahead))
    return Lag(name, tuple(behind), tuple(ahead), tuple(ordered), node, line)


def _from_json(value: Any) -> Ras:
    """Walk any shape: objects with `ranks` whose members carry `rank` and operation counts."""
    lags: list[Lag] = []
    dead: list[tuple[str, str, int]] = []
    stack, seen = [value], 0
    while stack:
        item = stack.pop()
        seen += 1
        if seen > 5_000_000:
            raise FileFault("holds more than 5,000,000 values")
        if isinstance(item, dict):
            ranks = item.get("ranks")
            if isinstance(ranks, list) and ranks and isinstance(ranks[0], dict):
                lag = _lag_of(item, ranks)
                if lag is not None:
                    lags.append(lag)
            for key in ("missing_ranks", "dead_processes", "missing"):
                for gone in item.get(key) or []:
                    if isinstance(gone, dict):
                        dead.append(
                            (
                                str(gone.get("node", gone.get("host", ""))),
                                str(gone.get("gpu", "")),
                                1,
                            )
                        )
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return Ras(tuple(lags), tuple(dead))


def _lag_of(item: dict[str, Any], ranks: list[dict[str, Any]]) -> Lag | None:
    counts: dict[int, list[int]] = {}
    for one in ranks:
        number = one.get("rank", one.get("comm_rank"))
        ops = one.get("collective_counts", one.get("coll_op_counts", one.get("op_count")))
        if number is None or ops is None:
            continue
        total = (
            sum(ops.values())
            if isinstance(ops, dict)
            else sum(ops)
            if isinstance(ops, list)
            else int(ops)
        )
        counts.setdefault(int(total), []).append(int(number))
    if len(counts) < 2:
        return None
    ordered = sorted((op, len(members)) for op, members in counts.items())
    low = ordered[0][0]
    ahead = sorted(r for op, members in counts.items() if op > low for r in members)
    name = str(item.get("hash", item.get("comm_hash", item.get("id", ""))))
    return Lag(name, tuple(sorted(counts[low])), tuple(ahead), tuple(ordered), "", 1)
