"""One timeline of all ranks: a Chrome trace with dependency arrows, clocks aligned (paper 5.2).

A process per rank, a thread per lane, an arrow from each pipeline send to the computation that
takes it. Perfetto and chrome://tracing open the file; it is written rank by rank and never held
whole.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from engine.diagnose.align import Alignment, align
from engine.diagnose.load import Line, decode_lines
from engine.errors import TraceError
from engine.events.reader import event_files
from engine.spec.layout import ParallelLayout

_LANES = ("host", "compute", "tp", "pp_f", "pp_b", "dp_gather", "dp_reduce")
_TAKES = {"forward": ("send_f", -1), "backward": ("send_b", 1), "backward_input": ("send_b", 1)}


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


def write_timeline(
    folder: Path,
    out: Path,
    layout: ParallelLayout,
    *,
    steps: tuple[int, int],
    most_ranks: int = 512,
) -> Written:
    """Write steps first..last of a run as a Chrome trace.

    Of more than `most_ranks` ranks the first are written: a browser opens no more.
    """
    files = dict(list(event_files(folder / "events").items())[:most_ranks])
    lines: dict[int, list[Line]] = {}
    wall: dict[int, int] = {}
    for rank, path in files.items():
        found, _ = decode_lines(path)
        clock = next((line for line in found[:16] if line.name == "clock"), None)
        wall[rank] = int(clock.attrs.get("wall_ns") or 0) - clock.t_ns if clock else 0
        lines[rank] = [
            line for line in found
            if line.kind in ("span", "open") and steps[0] <= line.step <= steps[1]
        ]  # fmt: skip
    if not any(lines.values()):
        raise TraceError(
            f"{folder}: no events of steps {steps[0]}-{steps[1]}",
            remedy="name steps that the run has, see `msctl diagnose` for the range",
        )
    clocks = align(lines, wall, layout)
    begin = min(line.t_ns + clocks.shift_ns[r] for r, ls in lines.items() for line in ls)
    slices = arrows = 0
    with out.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, (rank, events) in enumerate(lines.items()):
            shift = clocks.shift_ns[rank] - begin
            file.write(b",\n" if number else b"")
            slices += _write_rank(file, rank, events, shift, layout)
        for arrow in _arrows(lines, clocks, begin, layout):
            file.write(b",\n" + msgspec.json.encode(arrow))
            arrows += 1
        file.write(b"\n]}\n")
    return Written(
        str(out), len(lines), steps, slices, arrows // 2, clocks.residual_ns, clocks.unreached
    )


def _write_rank(
    file: IO[bytes], rank: int, events: list[Line], shift: int, layout: ParallelLayout
) -> int:
    at = layout.coord(rank)
    name = f"rank {rank} (tp {at.tp} pp {at.pp} dp {at.dp})"
    rows: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}},
        {
            "ph": "M",
            "name": "process_sort_index",
            "pid": rank,
            "tid": 0,
            "args": {"sort_index": rank},
        },
    ]
    for lane in sorted({e.stream for e in events}):
        rows.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": rank,
                "tid": _lane(lane),
                "args": {"name": lane},
            }
        )
    for event in events:
        args = {"step": event.step, **event.attrs}
        if event.kind == "open":
            args["open"] = True
        rows.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.kind,
                "pid": rank,
                "tid": _lane(event.stream),
                "ts": (event.t_ns + shift) / 1e3,
                "dur": event.dur_ns / 1e3,
                "args": args,
            }
        )
    file.write(b",\n".join(msgspec.json.encode(row) for row in rows))
    return len(events)


def _lane(stream: str) -> int:
    return _LANES.index(stream) if stream in _LANES else len(_LANES)


def _arrows(
    lines: dict[int, list[Line]], clocks: Alignment, begin: int, layout: ParallelLayout
) -> Iterator[dict[str, object]]:
    """Flow events from the end of a send to the start of the computation that takes its message."""
    sends: dict[tuple[int, int, int, str, int, int], tuple[int, Line]] = {}
    for rank, events in lines.items():
        at = layout.coord(rank)
        for line in events:
            if line.name in ("send_f", "send_b"):
                chunk, micro = _piece(line)
                sends[at.tp, at.dp, line.step, line.name, chunk, micro] = (rank, line)
    number = 0
    for rank, events in lines.items():
        at = layout.coord(rank)
        for line in events:
            if line.name not in _TAKES:
                continue
            name, step = _TAKES[line.name]
            chunk, micro = _piece(line)
            found = sends.get((at.tp, at.dp, line.step, name, chunk + step, micro))
            if found is None:
                continue
            number += 1
            source, sent = found
            shared = {"name": name, "cat": "dependency", "id": number}
            leaves = sent.t_ns + clocks.shift_ns[source] - begin
            takes = line.t_ns + clocks.shift_ns[rank] - begin
            yield {
                **shared,
                "ph": "s",
                "pid": source,
                "tid": _lane(sent.stream),
                "ts": leaves / 1e3,
            }
            yield {
                **shared, "ph": "f", "bp": "e", "pid": rank, "tid": _lane(line.stream),
                "ts": takes / 1e3,
            }  # fmt: skip


def _piece(line: Line) -> tuple[int, int]:
    return int(line.attrs.get("chunk") or 0), int(line.attrs.get("microbatch") or 0)
