"""One timeline of all ranks with dependency arrows, clocks aligned (paper 5.2).

A process per rank, a thread per lane, an arrow from each pipeline send to the computation that
takes it. Two forms: Chrome JSON, which every viewer opens, and Perfetto's protobuf, a third of the
size; the suffix of the file decides. The file is written rank by rank and never held whole.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from engine.diagnose.align import align
from engine.diagnose.eventlines import Line, decode_lines, whole
from engine.diagnose.export import unwritten
from engine.diagnose.perfetto import PerfettoWriter
from engine.errors import TraceError
from engine.events.reader import event_files
from engine.events.sums import TIMES
from engine.spec.layout import ParallelLayout

PERFETTO_SUFFIXES = (".pftrace", ".perfetto-trace")
_LANES = ("host", "compute", "tp", "pp_f", "pp_b", "dp_gather", "dp_reduce")
_TAKES = {"forward": ("send_f", -1), "backward": ("send_b", 1), "backward_input": ("send_b", 1)}
_MOST_JSON = 512
_MOST_PERFETTO = 8192


class Written(NamedTuple):
    """What was written."""

    path: str
    ranks: int
    steps: tuple[int, int]
    slices: int
    arrows: int
    residual_ns: int
    """How far ends of common calls still disagree after alignment."""
    unaligned: tuple[int, ...]


class Arrow(NamedTuple):
    """A message: the send that it leaves from and the computation that takes it."""

    number: int
    name: str
    source: int
    sent: Line
    target: int
    taken: Line


class Lane(NamedTuple):
    """Slices of one stream that nest or follow each other."""

    name: str
    number: int
    """Place among the rank's threads."""
    lines: list[Line]


def write_timeline(
    folder: Path,
    out: Path,
    layout: ParallelLayout,
    *,
    steps: tuple[int, int],
    most_ranks: int | None = None,
) -> Written:
    """Write steps first..last of a run.

    Of more than `most_ranks` ranks the first are written: a browser opens no more (512 in JSON,
    8,192 in Perfetto's form by default).
    """
    small = out.suffix in PERFETTO_SUFFIXES
    most = most_ranks or (_MOST_PERFETTO if small else _MOST_JSON)
    found = event_files(folder / "events").items()
    files = dict([(rank, path) for rank, path in found if rank < layout.world_size][:most])
    lines, wall = _read(files, steps)
    if not any(lines.values()):
        raise TraceError(
            f"{folder}: no events of steps {steps[0]}-{steps[1]}",
            remedy="name steps that the run has, see `msctl diagnose` for the range",
        )
    clocks = align(lines, wall, layout)
    begin = min(line.t_ns + clocks.shift_ns[r] for r, ls in lines.items() for line in ls)
    shift = {rank: clocks.shift_ns[rank] - begin for rank in lines}
    arrows = list(_arrows(lines, layout))
    try:
        with out.open("wb") as file:
            write = _write_perfetto if small else _write_json
            write(file, lines, shift, arrows, layout)
    except OSError as error:
        raise unwritten(out, error) from None
    slices = sum(map(len, lines.values()))
    return Written(
        str(out), len(lines), steps, slices, len(arrows), clocks.residual_ns, clocks.unreached
    )


def _read(
    files: dict[int, Path], steps: tuple[int, int]
) -> tuple[dict[int, list[Line]], dict[int, int]]:
    """Spans of the steps by rank, and each rank's wall clock less its own."""
    lines: dict[int, list[Line]] = {}
    wall: dict[int, int] = {}
    for rank, path in files.items():
        try:
            found = decode_lines(path).lines
        except TraceError:
            continue  # the report names it; the others still make a timeline
        clock = next((line for line in found[:16] if line.name == "clock"), None)
        wall[rank] = whole(clock.attrs.get("wall_ns")) - clock.t_ns if clock else 0
        lines[rank] = [
            line for line in found
            if line.kind in ("span", "open") and steps[0] <= line.step <= steps[1]
            and TIMES not in line.attrs  # a sum has no place in time
        ]  # fmt: skip
    return lines, wall


def lanes_of(lines: list[Line]) -> Iterator[Lane]:
    """The lanes of a rank; slices that overlap without nesting get lanes of their own."""
    number = count(len(_LANES) + 1)
    for stream in sorted({line.stream for line in lines}):
        rows: list[tuple[list[int], list[Line]]] = []
        for line in sorted(
            (one for one in lines if one.stream == stream), key=lambda one: (one.t_ns, -one.dur_ns)
        ):
            _place(rows, line)
        for row, (_, kept) in enumerate(rows):
            fixed = row == 0 and stream in _LANES
            name = stream if row == 0 else f"{stream} {row + 1}"
            yield Lane(name, _LANES.index(stream) if fixed else next(number), kept)


def _place(rows: list[tuple[list[int], list[Line]]], line: Line) -> None:
    """Put a slice into the first row in which it follows or nests."""
    end = line.t_ns + line.dur_ns
    for ends, kept in rows:
        while ends and ends[-1] <= line.t_ns:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            kept.append(line)
            return
    rows.append(([end], [line]))


def _title(rank: int, layout: ParallelLayout) -> str:
    at = layout.coord(rank)
    return f"rank {rank} (tp {at.tp} pp {at.pp} dp {at.dp})"


def _args(line: Line) -> dict[str, str | int | float | bool | None]:
    return {"step": line.step, **line.attrs, **({"open": True} if line.kind == "open" else {})}


def _write_perfetto(
    file: IO[bytes],
    lines: dict[int, list[Line]],
    shift: dict[int, int],
    arrows: list[Arrow],
    layout: ParallelLayout,
) -> None:
    leaves, takes = _by_line(arrows)
    writer = PerfettoWriter(file)
    for rank, events in lines.items():
        top = (rank + 1) << 8
        writer.process(top, rank, _title(rank, layout))
        for lane in lanes_of(events):
            track = top + 1 + lane.number
            writer.thread(track, top, lane.name)
            open_ends: list[int] = []
            for line in lane.lines:
                start = line.t_ns + shift[rank]
                while open_ends and open_ends[-1] <= start:
                    writer.end(track, open_ends.pop())
                writer.begin(
                    track, start, line.name, _args(line),
                    leaves=tuple(leaves.get(id(line), ())), takes=tuple(takes.get(id(line), ())),
                )  # fmt: skip
                open_ends.append(start + line.dur_ns)
            while open_ends:
                writer.end(track, open_ends.pop())
    writer.close()


def _by_line(arrows: list[Arrow]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    leaves: dict[int, list[int]] = {}
    takes: dict[int, list[int]] = {}
    for arrow in arrows:
        leaves.setdefault(id(arrow.sent), []).append(arrow.number)
        takes.setdefault(id(arrow.taken), []).append(arrow.number)
    return leaves, takes


def _write_json(
    file: IO[bytes],
    lines: dict[int, list[Line]],
    shift: dict[int, int],
    arrows: list[Arrow],
    layout: ParallelLayout,
) -> None:
    threads: dict[int, int] = {}
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    for number, (rank, events) in enumerate(lines.items()):
        file.write(b",\n" if number else b"")
        rows = list(_json_rows(rank, events, shift[rank], layout, threads))
        file.write(b",\n".join(msgspec.json.encode(row) for row in rows))
    for arrow in arrows:
        for row in _json_arrow(arrow, shift, threads):
            file.write(b",\n" + msgspec.json.encode(row))
    file.write(b"\n]}\n")


def _json_rows(
    rank: int, events: list[Line], shift: int, layout: ParallelLayout, threads: dict[int, int]
) -> Iterator[dict[str, object]]:
    top = {"ph": "M", "pid": rank, "tid": 0}
    yield {**top, "name": "process_name", "args": {"name": _title(rank, layout)}}
    yield {**top, "name": "process_sort_index", "args": {"sort_index": rank}}
    for lane in lanes_of(events):
        name = {"name": lane.name}
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane.number, "args": name}
        for line in lane.lines:
            threads[id(line)] = lane.number
            yield {
                "ph": "X", "name": line.name, "cat": line.kind, "pid": rank, "tid": lane.number,
                "ts": (line.t_ns + shift) / 1e3, "dur": line.dur_ns / 1e3, "args": _args(line),
            }  # fmt: skip


def _json_arrow(
    arrow: Arrow, shift: dict[int, int], threads: dict[int, int]
) -> Iterator[dict[str, object]]:
    shared = {"name": arrow.name, "cat": "dependency", "id": arrow.number}
    yield {
        **shared, "ph": "s", "pid": arrow.source, "tid": threads[id(arrow.sent)],
        "ts": (arrow.sent.t_ns + shift[arrow.source]) / 1e3,
    }  # fmt: skip
    yield {
        **shared, "ph": "f", "bp": "e", "pid": arrow.target, "tid": threads[id(arrow.taken)],
        "ts": (arrow.taken.t_ns + shift[arrow.target]) / 1e3,
    }  # fmt: skip


def _arrows(lines: dict[int, list[Line]], layout: ParallelLayout) -> Iterator[Arrow]:
    """From each send to the computation that takes its message."""
    sends: dict[tuple[int, int, int, str, int, int], tuple[int, Line]] = {}
    for rank, events in lines.items():
        at = layout.coord(rank)
        for line in events:
            if line.name in ("send_f", "send_b"):
                chunk, micro = _piece(line)
                sends[at.tp, at.dp, line.step, line.name, chunk, micro] = (rank, line)
    number = count(1)
    for rank, events in lines.items():
        at = layout.coord(rank)
        for line in events:
            if line.name not in _TAKES:
                continue
            name, step = _TAKES[line.name]
            chunk, micro = _piece(line)
            found = sends.get((at.tp, at.dp, line.step, name, chunk + step, micro))
            if found is not None:
                yield Arrow(next(number), name, found[0], found[1], rank, line)


def _piece(line: Line) -> tuple[int, int]:
    return whole(line.attrs.get("chunk")), whole(line.attrs.get("microbatch"))
