"""Event files of a run as arrays: seconds[part][rank, step], and what each rank was doing last.

One file is decoded at a time and reduced at once, so memory holds the arrays and one file.
Measured on 615,000 events: msgspec with this reduction beats DuckDB's JSON reader several times
over, which is why there is no SQL here.
"""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.diagnose.parts import PARTS, part_of
from engine.errors import TraceError
from engine.events.reader import event_files
from engine.events.schema import Attr
from engine.spec.layout import Coord, ParallelLayout

_FILE_LIMIT = 1 << 31
_CELLS = 12_000_000
"""Ranks times steps kept; 16 parts of 4 bytes each make this 0.75 GiB at most."""

_NESTED = frozenset({"host", "compute", "tp"})
"""Streams of the calling thread: their spans nest; other lanes run beside it."""


class Line(msgspec.Struct, gc=False):
    """The fields of an event that the reduction needs; others are skipped unread."""

    kind: str
    name: str
    t_ns: int
    rank: int = -1
    step: int = -1
    stream: str = "host"
    dur_ns: int = 0
    attrs: dict[str, Attr] = {}


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

    def coord(self, rank: int) -> Coord:
        """Where a rank sits."""
        return self.layout.coord(rank)


class _File(NamedTuple):
    tail: Tail
    layout: ParallelLayout
    cells: dict[tuple[str, int], float]
    steps: dict[int, float]
    actions: dict[tuple[str, int], tuple[float, int]]
    microbatches: int


def load_spans(events: Path, *, last: int | None = None) -> Spans:
    """Read a run's `events` folder; `last` keeps only that many newest steps.

    A file that cannot be read is left out and named in `unreadable`; TraceError if none can.
    """
    files = event_files(events)
    read: dict[int, _File] = {}
    bad: list[tuple[str, str]] = []
    keep = last or max(8, _CELLS // len(files))
    for rank, path in files.items():
        try:
            read[rank] = _read(path, rank, keep)
        except TraceError as error:
            bad.append((str(path), error.what))
    if not read:
        raise TraceError(
            f"{events}: none of {len(files)} event files can be read, the first: {bad[0][1]}",
            remedy="name the run folder that `msctl train` wrote, or use --logs for foreign jobs",
        )
    return _arrays(read, keep, tuple(bad))


def _arrays(read: dict[int, _File], keep: int, bad: tuple[tuple[str, str], ...]) -> Spans:
    ranks = np.array(sorted(read), dtype=np.int32)
    numbers = sorted({step for file in read.values() for step in file.steps})[-keep:]
    column = {step: index for index, step in enumerate(numbers)}
    shape = (len(ranks), len(numbers))
    step_s = np.full(shape, np.nan, np.float32)
    seconds = {part: np.zeros(shape, np.float32) for part in PARTS}
    actions: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row, rank in enumerate(ranks.tolist()):
        file = read[rank]
        for step, length in file.steps.items():
            if step in column:
                step_s[row, column[step]] = length
        for (part, step), value in file.cells.items():
            if step in column:
                seconds[part][row, column[step]] += value
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
    )


def _decode(path: Path) -> tuple[list[Line], bool]:
    """Lines of a file and whether the last one was torn; TraceError names a bad line."""
    size = path.stat().st_size
    if size > _FILE_LIMIT:
        raise TraceError(
            f"{path}: {size} bytes is more than the {_FILE_LIMIT} that are read at once",
            remedy="cut the file to its newest steps, e.g. with `tail -c 1G`",
        )
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    decoder = msgspec.json.Decoder(Line)
    try:
        return decoder.decode_lines(data[:end]), end < len(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    lines = []
    for number, text in enumerate(data[:end].split(b"\n")[:-1], 1):
        try:
            lines.append(decoder.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == 1:
                raise TraceError(
                    f"{path}:{number}: not an event: {error}",
                    remedy="delete the file, or name the run folder that wrote it",
                ) from None
    return lines, end < len(data)


def _read(path: Path, rank: int, keep: int) -> _File:
    lines, _ = _decode(path)
    clock = next((line for line in lines if line.name == "clock"), None)
    layout = _layout(path, clock)
    if rank >= layout.world_size:
        raise TraceError(
            f"{path}: rank {rank} is outside the {layout.world_size} ranks of its first line",
            remedy="do not mix the event files of two runs in one folder",
        )
    newest = max((line.step for line in lines), default=-1)
    first = newest - keep
    cells: dict[tuple[str, int], float] = defaultdict(float)
    steps: dict[int, float] = {}
    actions: dict[tuple[str, int], list[float]] = {}
    microbatches = 1
    for line, own_ns in _self_times(lines):
        if line.step <= first:
            continue
        if line.name == "step":
            steps[line.step] = line.dur_ns / 1e9
        cells[part_of(line.name, line.attrs), line.step] += own_ns / 1e9
        if line.name in ("forward", "backward"):
            sums = actions.setdefault((line.name, int(line.attrs.get("chunk") or 0)), [0.0, 0])
            sums[0] += own_ns / 1e9
            sums[1] += 1
            microbatches = max(microbatches, int(line.attrs.get("microbatch") or 0) + 1)
    totals = {key: (total, int(count)) for key, (total, count) in actions.items()}
    return _File(
        _tail(path, rank, layout, lines, clock), layout, cells, steps, totals, microbatches
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


def _self_times(lines: list[Line]) -> list[tuple[Line, int]]:
    """Spans with the part of their length that no nested span covers.

    A span is written when it closes, so children stand before their parent; lanes that run beside
    the calling thread (pipeline and dp traffic) are left out: what they cost shows as `wait`.
    """
    spans = [line for line in lines if line.kind == "span" and line.stream in _NESTED]
    spans.sort(key=lambda s: (s.t_ns + s.dur_ns, -s.t_ns))
    validations = [(s.t_ns, s.t_ns + s.dur_ns) for s in spans if s.name == "eval"]
    result: list[tuple[Line, int]] = []
    closed: list[tuple[int, int]] = []
    for span in spans:
        inside = 0
        while closed and closed[-1][0] >= span.t_ns:
            inside += closed.pop()[1]
        own = max(0, span.dur_ns - inside)
        if validations and any(a <= span.t_ns < b for a, b in validations):
            span.name = "eval"  # a validation's forwards are not training work
        result.append((span, own))
        closed.append((span.t_ns, span.dur_ns))
    return result


def _tail(
    path: Path, rank: int, layout: ParallelLayout, lines: list[Line], clock: Line | None
) -> Tail:
    error, error_line, dropped = "", None, 0
    ended = False
    last_open: list[Line] = []
    for number, line in enumerate(lines, 1):
        if line.kind == "open":
            last_open.append(line)
        elif line.name == "error":
            error = f"{line.attrs.get('type', '')}: {line.attrs.get('what', '')}"[:2000]
            error_line = number
        elif line.name == "end":
            ended = True
        elif line.name == "dropped":
            dropped = int(line.attrs.get("value") or 0)
    newest = max((line.t_ns + line.dur_ns for line in lines), default=0)
    opened = [line for line in last_open if line.t_ns + line.dur_ns >= newest - 2_000_000_000]
    closed = [line for line in lines if line.kind == "span"]
    offset = int(clock.attrs.get("wall_ns") or 0) - clock.t_ns if clock is not None else 0
    return Tail(
        rank,
        layout.coord(rank),
        ended,
        error,
        error_line,
        max((line.step for line in lines), default=-1),
        closed[-1].name if closed else "",
        newest + offset,
        tuple(opened),
        dropped,
        str(path),
    )
