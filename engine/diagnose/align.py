"""Clock offsets between ranks, from calls that end together on all members.

A data-parallel or tensor-parallel wait ends on all members at nearly the same moment. The
median difference of such ends is the offset of two clocks; what is left after shifting is the
residual, and no order between ranks below it means anything.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engine.diagnose.eventlines import Line
from engine.spec.layout import ParallelLayout


class Alignment(NamedTuple):
    """Nanoseconds to add to each rank's clock, and how well the ends agree afterwards."""

    shift_ns: dict[int, int]
    residual_ns: int
    """95th percentile of the disagreement of ends that should be equal."""
    unreached: tuple[int, ...]
    """Ranks without a common call: their clock is the wall clock's guess."""


def align(
    lines: Mapping[int, list[Line]], wall_ns: Mapping[int, int], layout: ParallelLayout
) -> Alignment:
    """Offsets relative to the lowest rank.

    wall_ns is each rank's wall clock less its monotonic clock: the first guess, and the answer for
    ranks that share no call with others.
    """
    ends = {rank: _ends(rank, events, layout) for rank, events in lines.items()}
    first = min(lines)
    shift = {first: wall_ns.get(first, 0)}
    queue = deque([first])
    gaps: list[float] = []
    while queue:
        rank = queue.popleft()
        for other in _neighbours(rank, layout):
            if other in shift or other not in ends:
                continue
            found = _difference(ends[rank], ends[other])
            if found is not None:
                offset, spread = found
                shift[other] = shift[rank] + offset
                gaps += spread
                queue.append(other)
    missing = tuple(r for r in lines if r not in shift)
    for rank in missing:
        shift[rank] = wall_ns.get(rank, 0)
    base = min(shift.values())
    residual = int(np.percentile(np.abs(gaps), 95)) if gaps else 0
    return Alignment({r: s - base for r, s in shift.items()}, residual, missing)


def _ends(rank: int, events: list[Line], layout: ParallelLayout) -> dict[tuple[str, int, int], int]:
    """End of the n-th common call of a step, by kind of group."""
    coord = layout.coord(rank)
    counts: dict[tuple[str, int], int] = {}
    ends = {}
    for line in events:
        kind = _common(line)
        if kind is None:
            continue
        number = counts.get((kind, line.step), 0)
        counts[kind, line.step] = number + 1
        at = line.t_ns if kind == "update" else line.t_ns + line.dur_ns
        ends[f"{kind}{coord.pp if kind == 'tp' else ''}", line.step, number] = at
    return ends


def _common(line: Line) -> str | None:
    if line.kind != "span":
        return None
    if line.name == "clip":
        return "world"
    if line.name == "optimizer":
        return "update"  # it starts when the gradients of all ranks are there
    if line.name == "tp_comm" and line.attrs.get("op") in ("all_reduce", "reduce_scatter"):
        return "tp"
    return None


def _neighbours(rank: int, layout: ParallelLayout) -> list[int]:
    """Ranks that share calls with this one: its tensor-parallel group, then everybody's norm."""
    near = [r for r in layout.group("tp", rank) if r != rank]
    return near + [r for axis in ("dp", "pp") for r in layout.group(axis, rank) if r != rank]


def _difference(
    a: dict[tuple[str, int, int], int], b: dict[tuple[str, int, int], int]
) -> tuple[int, list[float]] | None:
    shared = [key for key in a if key in b]
    if not shared:
        return None
    gaps = np.array([a[key] - b[key] for key in shared], np.float64)
    offset = int(np.median(gaps))
    return offset, (gaps - offset).tolist()
