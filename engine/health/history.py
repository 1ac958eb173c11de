"""What earlier looks at a node found: one line a look, in the folder of counters.

A node that was unfit last week and is well today is remembered: such nodes fail again (lemons). The
file is cut to its newer half when it grows beyond a bound.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from engine.health.result import NodeReport, Status, npd_line
from engine.spec.base import NonNegative, Noun

FILE = "history.jsonl"
_MAX_BYTES = 4 << 20
_LINE_LIMIT = 4096
_DAY_S = 86400.0
LEMON_DAYS = 30.0


class Past(Noun, frozen=True, kw_only=True):
    """One earlier look."""

    node: str
    time_s: float
    level: str
    status: Status
    worst: str = ""
    """The worst finding in a line."""
    seconds: NonNegative = 0.0


def remember(folder: Path, reports: Iterable[NodeReport]) -> bool:
    """Add looks to the history; False if the place cannot be written."""
    lines = [
        msgspec.json.encode(
            Past(node=r.node, time_s=r.time_s, level=r.level, status=r.status,
                 worst=npd_line(r.results, limit=160), seconds=r.seconds)
        )
        for r in reports
    ]  # fmt: skip
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _cut(path)
        with path.open("ab") as file:  # one write a look: parallel looks do not mix
            file.write(b"".join(line + b"\n" for line in lines))
    except OSError:
        return False
    return True


def recall(folder: Path, node: str = "") -> list[Past]:
    """Earlier looks, oldest first, at one node or all; lines that cannot be read are skipped."""
    found = []
    try:
        with (folder / FILE).open("rb") as file:
            data = file.read(2 * _MAX_BYTES)
    except OSError:
        return []
    for line in data.splitlines():
        try:
            past = msgspec.json.decode(line[:_LINE_LIMIT], type=Past)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if not node or past.node == node:
            found.append(past)
    return found


def lemons(past: Sequence[Past], *, now_s: float | None = None) -> dict[str, int]:
    """Node -> how many looks of the last 30 days found it unfit."""
    since = (time.time() if now_s is None else now_s) - LEMON_DAYS * _DAY_S
    found: dict[str, int] = {}
    for one in past:
        if one.status in ("fail", "error") and one.time_s >= since:
            found[one.node] = found.get(one.node, 0) + 1
    return found


def _cut(path: Path) -> None:
    """Keep the newer half of a file that has grown too long, from a whole line on."""
    if not path.exists() or path.stat().st_size <= _MAX_BYTES:
        return
    data = path.read_bytes()[-_MAX_BYTES // 2 :]
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(data[data.find(b"\n") + 1 :])
    partial.replace(path)
