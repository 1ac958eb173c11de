"""Event files of a run as arrays: seconds[part][rank, step], and what each rank was doing last.

One file is decoded at a time and reduced at once, so memory holds the arrays and one file.
Measured on 615,000 events: msgspec with this reduction beats DuckDB's JSON reader several times
over, which is why there is no SQL here.
"""

from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.diagnose.eventlines import FILE_LIMIT, Decoded, Line, decode_lines, whole
from engine.diagnose.parts import DIRECT, PARTS, part_of
from engine.diagnose.readers.files import cores
from engine.errors import TraceError
from engine.events.reader import event_files
from engine.events.schema import ASIDE, VERSION
from engine.events.sums import SUMMED, TIMES
from engine.spec.layout import Coord, ParallelLayout

MOST_BYTES, LEAST_BYTES = 16 << 30, 1 << 20
"""Of all files together, and of each in any case; of larger ones the ends are read."""
_CELLS = 12_000_000
"""Ranks times steps kept; 16 parts of 4 bytes each make this 0.75 GiB at most."""

_ALONE = 1024
"""Below so many files starting processes costs more than it saves."""

_ACTIONS = frozenset({"forward", "backward", "backward_input", "backward_weight"})
_ROW = {part: row for row, part in enumerate(PARTS)}

_NESTED = frozenset({"host", "compute", "tp"})
"""Streams of the calling thread: their spans nest; other lanes run beside it."""


class Tail(NamedTuple):
    """How a rank's file ends: what was open, what failed, when it was last heard of."""

    rank: int
    coord: Coord
    ended: bool
    error: str
    error_line: int | None
    last_step: int
    last_name: str
    last_wall_ns: int
    open: tuple[Line, ...]
    dropped: int
    file: str


class Spans(NamedTuple):
    """A run's events reduced to arrays; seconds[part] is [ranks, steps], ranks in file order."""

    layout: ParallelLayout
    ranks: NDArray[np.int32]
    steps: NDArray[np.int64]
    step_s: NDArray[np.float32]
    seconds: dict[str, NDArray[np.float32]]
    actions: dict[tuple[str, int], dict[int, float]]
    """(forward or backward, chunk) -> rank -> mean own seconds of one micro-batch."""
    tails: dict[int, Tail]
    microbatches: int
    unreadable: tuple[tuple[str, str], ...]
    summed: frozenset[int] = frozenset()
    """Steps whose spans were summed up when they were written."""
    cut: int = 0
    """Ranks of which only the newest events were read."""

    def coord(self, rank: int) -> Coord:
        """Where a rank sits."""
        return self.layout.coord(rank)


class _File(NamedTuple):
    tail: Tail
    layout: ParallelLayout
    steps: NDArray[np.int64]
    step_s: NDArray[np.float32]
    """NaN where a step was not completed."""
    seconds: NDArray[np.float32]
    """[parts, steps]"""
    actions: dict[tuple[str, int], tuple[float, int]]
    microbatches: int
    bad_lines: int
    """Lines within the file that are no events."""
    summed: frozenset[int]
    is_cut: bool


def load_spans(events: Path, *, last: int | None = None, most_bytes: int = MOST_BYTES) -> Spans:
    """Read a run's `events` folder; `last` keeps only that many newest steps.

    most_bytes  read at most so much of all files together: of each its end

    A file that cannot be read is left out and named in `unreadable`; TraceError if none can.
    """
    files = event_files(events)
    read: dict[int, _File] = {}
    bad: list[tuple[str, str]] = []
    keep = last or max(8, _CELLS // len(files))
    most = min(FILE_LIMIT, max(LEAST_BYTES, most_bytes // len(files)))
    for rank, outcome in _outcomes(files, keep, most):
        if isinstance(outcome, _File):
            read[rank] = outcome
            if outcome.bad_lines:
                said = f"{outcome.bad_lines} lines are no events; the others were read"
                bad.append((str(files[rank]), said))
        else:
            bad.append((str(files[rank]), outcome))
    if not read:
        raise TraceError(
            f"{events}: none of {len(files)} event files can be read, the first: {bad[0][1]}",
            remedy="name the run folder that `msctl train` wrote, or use --logs for foreign jobs",
        )
    return _arrays(read, keep, tuple(bad))


_Outcome = _File | str


def _outcomes(files: dict[int, Path], keep: int, most: int) -> Iterator[tuple[int, "_Outcome"]]:
    """What each file holds or why it cannot be read; on several cores where there are many."""
    jobs = [(path, rank, keep, most) for rank, path in files.items()]
    if len(jobs) < _ALONE or cores() < 2:
        yield from map(_outcome, jobs)
        return
    with futures.ProcessPoolExecutor(cores()) as pool:
        yield from pool.map(_outcome, jobs, chunksize=64)


def _outcome(job: tuple[Path, int, int, int]) -> tuple[int, "_Outcome"]:
    path, rank, keep, most = job
    try:
        return rank, _read(path, rank, keep, most)
    except TraceError as error:
        return rank, error.what


def _arrays(read: dict[int, _File], keep: int, bad: tuple[tuple[str, str], ...]) -> Spans:
    ranks = np.array(sorted(read), dtype=np.int32)
    numbers = np.unique(np.concatenate([file.steps for file in read.values()]))[-keep:]
    shape = (len(ranks), len(numbers))
    step_s = np.full(shape, np.nan, np.float32)
    seconds = {part: np.zeros(shape, np.float32) for part in PARTS}
    actions: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row, rank in enumerate(ranks.tolist()):
        file = read[rank]
        kept = np.isin(file.steps, numbers)
        columns = np.searchsorted(numbers, file.steps[kept])
        step_s[row, columns] = file.step_s[kept]
        for index, part in enumerate(PARTS):
            seconds[part][row, columns] = file.seconds[index, kept]
        for key, (total, count) in file.actions.items():
            actions[key][rank] = total / count
    layout = max((f.layout for f in read.values()), key=lambda one: one.world_size)
    return Spans(
        layout,
        ranks,
        np.array(numbers, dtype=np.int64),
        step_s,
        seconds,
        dict(actions),
        {rank: file.tail for rank, file in read.items()},
        max(file.microbatches for file in read.values()),
        bad,
        frozenset().union(*(file.summed for file in read.values())),
        sum(file.is_cut for file in read.values()),
    )


def _read(path: Path, rank: int, keep: int, most: int) -> _File:
    decoded = decode_lines(path, most)
    lines = decoded.lines
    clock = next((line for line in lines[:16] if line.name == "clock"), None)
    layout = _layout(path, clock)
    _same(path, rank, clock)
    if rank >= layout.world_size:
        raise TraceError(
            f"{path}: rank {rank} is outside the {layout.world_size} ranks of its first line",
            remedy="do not mix the event files of two runs in one folder",
        )
    newest = max([line.step for line in lines], default=-1)
    cells, steps, actions, microbatches = _reduce(_ordered(lines), newest - keep)
    numbers = sorted({step for _, step in cells} | set(steps))
    column = {step: index for index, step in enumerate(numbers)}
    seconds = np.zeros((len(PARTS), len(numbers)), np.float32)
    for (part, step), value in cells.items():
        seconds[_ROW[part], column[step]] = value / 1e9
    lengths = [steps.get(step, np.nan) / 1e9 for step in numbers]
    return _File(
        _tail(path, rank, layout, decoded, clock), layout, np.array(numbers, np.int64),
        np.array(lengths, np.float32), seconds,
        {key: (total / 1e9, count) for key, (total, count) in actions.items()}, microbatches,
        decoded.bad,
        frozenset(line.step for line in lines if line.name == "step" and SUMMED in line.attrs),
        decoded.is_cut,
    )  # fmt: skip


def _ordered(lines: list[Line]) -> list[Line]:
    """Spans of the calling thread in the order of their ends, children before their parents.

    That is how they are written, so they are sorted only where a file differs. The forwards of a
    validation are renamed: they are no training work. Lanes that run beside the calling thread
    (pipeline and dp traffic) are left out, since what they cost shows as `wait`; where a transfer
    is only started (no lane span overlaps a computation) its call took the thread and counts.
    """
    spans = [line for line in lines if line.kind == "span" and line.stream in _NESTED]
    calls = [line for line in lines if line.kind == "span" and line.stream not in _NESTED]
    if calls and not _overlaps(calls + [line for line in spans if line.name in _ACTIONS]):
        spans += calls
    ends = [line.t_ns + line.dur_ns for line in spans]
    if any(a > b for a, b in pairwise(ends)):
        spans.sort(key=lambda s: (s.t_ns + s.dur_ns, -s.t_ns))
    aside = [(s.name, s.t_ns, s.t_ns + s.dur_ns) for s in spans if s.name in ASIDE]
    if aside:
        for span in spans:
            if span.name != "step":
                inside = (name for name, a, b in aside if a <= span.t_ns < b)
                span.name = next(inside, span.name)
    return spans


def _overlaps(spans: list[Line]) -> bool:
    """Whether any two spans ran at the same time."""
    times = sorted((s.t_ns, s.t_ns + s.dur_ns) for s in spans)
    return any(earlier[1] > later[0] for earlier, later in pairwise(times))


def _reduce(
    spans: list[Line], first: int
) -> tuple[dict[tuple[str, int], int], dict[int, int], dict[tuple[str, int], tuple[int, int]], int]:
    """Own nanoseconds by (part, step), lengths of steps, sums by (direction, chunk), micro-batches.

    A span's own time is its length less that of the spans that closed inside it.
    """
    cells: dict[tuple[str, int], int] = {}
    steps: dict[int, int] = {}
    actions: dict[tuple[str, int], tuple[int, int]] = {}
    microbatches = 1
    starts: list[int] = []
    lengths: list[int] = []
    for span in spans:
        start, own, name, step = span.t_ns, span.dur_ns, span.name, span.step
        while starts and starts[-1] >= start:
            starts.pop()
            own -= lengths.pop()
        starts.append(start)
        lengths.append(span.dur_ns)
        if step <= first or step < 0:  # the start is no part of a step
            continue
        if own < 0:
            own = 0
        key = (DIRECT.get(name) or part_of(name, span.attrs), step)
        cells[key] = cells.get(key, 0) + own
        if name == "step":
            steps[step] = span.dur_ns
        elif name in _ACTIONS:
            action = (name, whole(span.attrs.get("chunk")))
            total, count = actions.get(action, (0, 0))
            times = max(1, whole(span.attrs.get(TIMES, 1)))
            actions[action] = (total + own, count + times)
            number = whole(span.attrs.get("microbatch"))
            if number >= microbatches:
                microbatches = number + 1
    return cells, steps, actions, microbatches


def _same(path: Path, rank: int, clock: Line | None) -> None:
    """Refuse what another program version wrote, or another rank."""
    if clock is None:
        return
    if clock.v != VERSION:
        raise TraceError(
            f"{path}: schema version {clock.v}, this program reads {VERSION}",
            remedy="use the version of msctl that wrote the run",
        )
    if clock.rank not in (-1, rank):
        raise TraceError(
            f"{path}: holds the events of rank {clock.rank}",
            remedy="give every file its own rank's name again",
        )


def _layout(path: Path, clock: Line | None) -> ParallelLayout:
    attrs = clock.attrs if clock is not None else {}
    try:
        degrees = {axis: int(attrs[axis] or 1) for axis in ("tp", "pp", "dp")}
        layout = msgspec.convert(degrees, ParallelLayout)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        raise TraceError(
            f"{path}: the first line is no `clock` event with tp, pp and dp",
            remedy="name a run folder that `msctl train` wrote, or use --logs for foreign jobs",
        ) from None
    if layout.world_size > 1 << 20:
        raise TraceError(
            f"{path}: a layout of {layout.world_size} ranks is beyond what is read (2**20)",
            remedy="check the clock event of the file",
        )
    return layout


def _tail(
    path: Path, rank: int, layout: ParallelLayout, decoded: Decoded, clock: Line | None
) -> Tail:
    lines = decoded.lines
    error, error_line, dropped = "", None, 0
    ended = False
    last_open: list[Line] = []
    for number, line in enumerate(lines, 1 - decoded.older):
        if line.kind == "span":
            continue
        if line.kind == "open":
            last_open.append(line)
        elif line.name == "error":
            error = f"{line.attrs.get('type', '')}: {line.attrs.get('what', '')}"[:2000]
            error_line = None if decoded.is_cut else number
        elif line.name == "end":
            ended = True
        elif line.name == "dropped":
            dropped = whole(line.attrs.get("value"))
    late = lines[-256:]
    newest = max((line.t_ns + line.dur_ns for line in late), default=0)
    opened = [o for o in last_open if o.t_ns + o.dur_ns >= newest - 2_000_000_000]
    closed = next((line.name for line in reversed(lines) if line.kind == "span"), "")
    offset = whole(clock.attrs.get("wall_ns")) - clock.t_ns if clock is not None else 0
    return Tail(
        rank, layout.coord(rank), ended, error, error_line,
        max((line.step for line in late), default=-1), closed, newest + offset,
        tuple(opened), dropped, str(path),
    )  # fmt: skip
