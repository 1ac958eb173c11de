"""Runs made by the simulator: the same schedule and event schema that training uses, with known
faults.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.events.schema import Event
from engine.schedule.action import Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.simulate import simulate
from engine.spec.layout import ParallelLayout

Factor = Callable[[int, int], float]
WALL_NS = 1_700_000_000_000_000_000


def write_run(
    folder: Path,
    layout: ParallelLayout,
    *,
    steps: int = 20,
    microbatches: int = 4,
    factor: Factor = lambda rank, step: 1.0,
    extra: Callable[[int, int], list[tuple[str, float]]] = lambda rank, step: [],
    noise: float = 0.01,
    seed: int = 0,
    ended: bool = True,
    even: bool = False,
) -> Path:
    """Write a run folder whose ranks follow the schedule; factor(rank, step) scales compute.

    All ranks of a step wait for the slowest pipeline, as a data-parallel reduction makes them.
    extra(rank, step) adds host spans (name, seconds) before the first action; even=True makes all
    stages equal and transfers free.
    """
    rng = random.Random(seed)
    schedule = add_comm(build("auto", layout.pp, layout.vpp, microbatches), dp=layout.dp > 1)
    lines: dict[int, list[Event]] = {r: [_clock(r, layout)] for r in range(layout.world_size)}
    clock = {r: 1_000_000_000 + r * 7_000_000 for r in lines}
    for step in range(steps):
        ends = {}
        for dp in range(layout.dp):
            for tp in range(layout.tp):
                for rank, events, end in _pipeline(
                    layout, schedule, step, tp, dp, rng, factor, noise, even
                ):
                    ends[rank] = (events, end)
        longest = max(end for _, end in ends.values())
        for rank, (events, end) in ends.items():
            lines[rank] += _step(rank, step, events, end, longest, clock[rank], extra(rank, step))
            shift = sum(s for r in ends for _, s in extra(r, step)) if extra else 0.0
            clock[rank] += round((longest + 0.012 + shift) * 1e9)
    for rank, events in lines.items():
        path = folder / "events" / f"rank-{rank:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if ended:
            events.append(_event(rank, -1, "instant", "end", "host", clock[rank], 0, {}))
        path.write_bytes(msgspec.json.Encoder().encode_lines(events))
    if ended:
        (folder / "result.json").write_text(json.dumps({"ended": "done"}))
    return folder


def _pipeline(layout, schedule, step, tp, dp, rng, factor, noise, even):
    """Spans and waits of one pipeline's ranks in one step."""

    def duration(action: Action) -> float:
        base = {Kind.FORWARD: 0.010, Kind.BACKWARD: 0.020}.get(action.kind)
        if base is None:
            return 0.0 if even else 0.0005
        stage = schedule.stage_of(action.chunk)
        rank = tp + layout.tp * (dp + layout.dp * stage)
        return (
            base
            * (1 + 0.1 * (stage == 0 and not even))
            * factor(rank, step)
            * max(0.5, rng.gauss(1, noise))
        )

    run = simulate(schedule, duration)
    for stage in range(layout.pp):
        rank = tp + layout.tp * (dp + layout.dp * stage)
        spans = [s for s in run.spans if s.stage == stage]
        waits = [w for w in run.waits if w.stage == stage]
        yield rank, (spans, waits), max(s.end_s for s in spans)


def _step(rank, step, events, end, longest, start, extras):
    spans, waits = events
    rows = []
    shift = 0
    for name, seconds in extras:
        attrs = {"generation": 2} if name == "gc" else {}
        rows.append(
            _event(rank, step, "span", name, "host", start + shift, round(seconds * 1e9), attrs)
        )
        shift += round(seconds * 1e9)
    for span in spans:
        attrs = {"chunk": span.action.chunk}
        if span.action.microbatch is not None:
            attrs["microbatch"] = span.action.microbatch
        name = span.action.kind.name.lower()
        at, length = (
            start + shift + round(span.start_s * 1e9),
            round((span.end_s - span.start_s) * 1e9),
        )
        rows.append(_event(rank, step, "span", name, span.lane, at, length, attrs))
    for wait in waits:
        at, length = (
            start + shift + round(wait.start_s * 1e9),
            round((wait.end_s - wait.start_s) * 1e9),
        )
        rows.append(_event(rank, step, "span", "wait", "compute", at, length, {"on": wait.cause}))
    tail = start + shift + round(end * 1e9)
    rows.append(
        _event(
            rank,
            step,
            "span",
            "wait",
            "compute",
            tail,
            round((longest - end) * 1e9),
            {"on": "dp_reduce"},
        )
    )
    rows.append(
        _event(
            rank,
            step,
            "span",
            "optimizer",
            "compute",
            start + shift + round(longest * 1e9),
            10_000_000,
            {},
        )
    )
    rows.append(
        _event(
            rank, step, "span", "step", "host", start, shift + round((longest + 0.0105) * 1e9), {}
        )
    )
    return rows


def _clock(rank, layout):
    coord = layout.coord(rank)
    attrs = {
        "wall_ns": WALL_NS,
        "world": layout.world_size,
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "tp_index": coord.tp,
        "pp_index": coord.pp,
        "dp_index": coord.dp,
    }
    return _event(rank, -1, "instant", "clock", "host", 1_000_000_000, 0, attrs)


def _event(rank, step, kind, name, stream, t_ns, dur_ns, attrs):
    return Event(
        rank=rank,
        seq=0,
        step=step,
        kind=kind,
        name=name,
        stream=stream,
        t_ns=t_ns,
        dur_ns=max(0, dur_ns),
        attrs=attrs,
    )


def append_open(folder: Path, rank: int, step: int, name: str, at_s: float, **attrs) -> None:
    """Add a watchdog's dump of one open span to a rank's file."""
    path = folder / "events" / f"rank-{rank:05d}.jsonl"
    event = _event(rank, step, "open", name, "compute", round(at_s * 1e9), 30_000_000_000, attrs)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(event) + b"\n")
