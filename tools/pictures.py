"""Draw the pictures of the documentation with the code that they are about.

    python -m tools.pictures            write what has changed under docs/pictures
    python -m tools.pictures --check    only say what is stale; exit 1 if anything is

Grids and timelines come from the simulator, the heat map, the waterfall and the hang from the
detectors on a made-up run whose faults are known, the ladder from the planner, the comparisons from
the tables of measurements.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from engine.diagnose.attribution import attribute
from engine.diagnose.heatmap import heat_map
from engine.diagnose.load import Spans
from engine.diagnose.pace import find_pace
from engine.diagnose.parts import PARTS
from engine.diagnose.record import Metric, Record
from engine.plan.paper import ladder as paper_ladder
from engine.schedule.action import COMPUTE, Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import Simulation, simulate
from engine.spec.layout import ParallelLayout
from tools.charts import checkpoints, start_up
from tools.svg import COLOURS, arrow, box, page, text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
FORWARD_S, BACKWARD_S, SEND_S = 1.0, 2.0, 0.15


def _seconds(action: Action) -> float:
    length = {Kind.FORWARD: FORWARD_S, Kind.BACKWARD: BACKWARD_S}.get(action.kind)
    return SEND_S if length is None else length


def _row(run: Simulation, schedule: Schedule, stage: int, y: float, scale: float) -> list[str]:
    """The computations of a stage as boxes with their micro-batch."""
    parts = []
    for span in run.spans:
        if span.stage != stage or span.lane != "compute" or span.action.kind not in COMPUTE:
            continue
        local = schedule.chunks_of(stage).index(span.action.chunk)
        width = (span.end_s - span.start_s) * scale
        back = span.action.kind is not Kind.FORWARD
        shade = 1.0 if back else 0.6
        colour = COLOURS[local % 3]
        parts.append(box(90 + span.start_s * scale, y, width - 0.8, 20, colour, shade=shade))
        if width > 9:
            middle = 90 + span.start_s * scale + width / 2
            parts.append(text(middle, y + 14, str(span.action.microbatch), "in"))
    return parts


def schedule_grid() -> str:
    """One pipeline of four stages under two schedules."""
    parts, y = [], 18.0
    for name, vpp in (("one chunk a stage", 1), ("two chunks a stage, interleaved", 2)):
        schedule = build("auto", 4, vpp, 8)
        run = simulate(schedule, lambda a, v=vpp: _seconds(a) / v if a.kind in COMPUTE else 0.0)
        busy = sum(run.busy_s(stage) for stage in range(4)) / 4
        lost = 1 - busy / run.makespan_s
        parts.append(text(8, y, f"{name}: bubble {100 * lost:.0f} % of the step"))
        for stage in range(4):
            y += 24
            parts.append(text(8, y + 2, f"stage {stage}", "soft"))
            parts += _row(run, schedule, stage, y - 12, 18.0)
        y += 34
    parts.append(
        text(8, y, "pale: forward, full: backward, colour: chunk, number: micro-batch", "soft")
    )
    return page(700, y + 12, parts, "Pipeline schedules of four stages as grids")


def timeline() -> str:
    """Lanes of two stages with messages, as simulated: what a trace file shows."""
    schedule = add_comm(build("auto", 2, 2, 4), dp=True)
    run = simulate(schedule, _seconds)
    scale = 560 / run.makespan_s
    lanes = sorted(
        {(s.stage, s.lane) for s in run.spans}, key=lambda k: (k[0], k[1] != "compute", k[1])
    )
    parts = [text(8, 16, "predicted timeline: computations and messages overlap")]
    for number, (stage, lane) in enumerate(lanes):
        y = 26 + number * 18
        parts.append(text(8, y + 11, f"{stage} {lane}", "soft"))
        for span in run.spans:
            if (span.stage, span.lane) != (stage, lane):
                continue
            width = max(1.0, (span.end_s - span.start_s) * scale - 0.6)
            colour = "a" if lane == "compute" else "d" if lane.startswith("dp") else "c"
            shade = 0.6 if span.action.kind is Kind.FORWARD else 1.0
            parts.append(box(110 + span.start_s * scale, y, width, 14, colour, shade=shade))
    return page(700, 40 + 18 * len(lanes), parts, "Timeline of two pipeline stages by lane")


LAYOUT = ParallelLayout(tp=4, pp=4, dp=4)


def _run() -> tuple[Spans, Record]:
    """64 ranks, 80 steps: rank 22 is 12 % slow, ranks 40 to 47 in bursts, 3 % of a step is data."""
    rng = np.random.default_rng(5)
    ranks, steps = np.arange(64, dtype=np.int32), np.arange(80)
    factor = 1 + 0.01 * rng.standard_normal((64, 80))
    factor[22] *= 1.12
    factor[40:48, 25:40] *= 1.18
    factor[40:48, 60:70] *= 1.18
    zero = np.zeros((64, 80), np.float32)
    seconds = {part: zero.copy() for part in PARTS}
    seconds["forward"] = (0.30 * factor).astype(np.float32)
    seconds["backward"] = (0.60 * factor).astype(np.float32)
    own = 0.9 * factor
    seconds["wait_tp"] = (0.05 + 0 * zero).astype(np.float32)
    seconds["wait_dp"] = (own.max(axis=0) - own + 0.04).astype(np.float32)
    seconds["wait_pp"] = (0.12 + 0 * zero).astype(np.float32)
    seconds["data"] = (0.03 + 0 * zero).astype(np.float32)
    seconds["optimizer"] = (0.02 + 0 * zero).astype(np.float32)
    step_s = sum(seconds.values(), zero.copy())
    actions: dict[tuple[str, int], dict[int, float]] = {}
    for rank in range(64):
        chunk = LAYOUT.coord(rank).pp
        for name in ("forward", "backward"):
            mean = float(seconds[name][rank].mean()) / 16
            actions.setdefault((name, chunk), {})[rank] = mean
    spans = Spans(LAYOUT, ranks, steps, step_s, seconds, actions, {}, 16, ())
    metrics = tuple(Metric(step=int(n), mfu=0.46) for n in steps)
    return spans, Record(None, metrics, {})


def heat() -> str:
    """Rank by step with one slow rank and one slow node."""
    spans, _ = _run()
    shown = heat_map(spans, rows=64, columns=79)
    parts = [text(8, 16, "how much longer a rank computes than its peers, by step")]
    for y, row in enumerate(shown.cells):
        for x, value in enumerate(row):
            if value > 0.02:
                shade = min(1.0, float(value) / 0.2)
                parts.append(box(90 + 7.4 * x, 26 + 6 * y, 7.4, 6, "bad", shade=shade))
    parts += [
        text(8, 26 + 6 * 22 + 6, "rank 22", "soft"),
        text(8, 26 + 6 * 44 + 6, "node 5", "soft"),
    ]
    parts.append(text(90, 26 + 64 * 6 + 16, "steps; darkest: 20 % and more", "soft"))
    return page(700, 26 + 64 * 6 + 28, parts, "Heat map of ranks and steps with stragglers")


def waterfall() -> str:
    """From the peak to the measured MFU."""
    spans, record = _run()
    made = attribute(spans, record, find_pace(spans))
    assert made is not None
    parts = [text(8, 16, "where the points of MFU went")]
    left = 1.0
    rows = [r for r in made.rows if r.points > 0.002]
    for number, row in enumerate(rows):
        y = 28 + 24 * number
        colour = "bad" if row.name == "stragglers" else "a" if "kernel" in row.name else "e"
        parts.append(text(150, y + 13, row.name, "end"))
        parts.append(box(160 + 460 * (left - row.points), y, 460 * row.points, 18, colour))
        shown = f"{100 * row.points:.1f}"
        parts.append(text(164 + 460 * left, y + 13, shown, "soft"))
        left -= row.points
    y = 28 + 24 * len(rows)
    parts += [text(150, y + 13, "measured", "end"), box(160, y, 460 * left, 18, "c")]
    parts.append(text(164 + 460 * left, y + 13, f"{100 * left:.1f} % of peak", "soft"))
    return page(700, y + 30, parts, "Waterfall from peak to measured model FLOPs utilisation")


def hang() -> str:
    """The layout as panels of ranks; everybody waits, over others, for one."""
    stuck = 22
    corner = {}
    for rank in range(64):
        at = LAYOUT.coord(rank)
        corner[rank] = (20 + at.pp * 170 + at.tp * 34, 50 + at.dp * 34)
    middle = {rank: (x + 13, y + 13) for rank, (x, y) in corner.items()}
    parts = [text(8, 16, "a hang: every rank waits, directly or over others, for rank 22")]
    for axis in ("pp", "dp", "tp"):
        for other in LAYOUT.group(axis, stuck):
            if other != stuck:
                colour = "bad" if axis == "tp" else "soft"
                parts.append(arrow(*middle[other], *middle[stuck], colour))
    for rank, (x, y) in corner.items():
        direct = rank in LAYOUT.group("tp", stuck)
        colour = "bad" if rank == stuck else "d" if direct else "f"
        parts.append(box(x, y, 26, 26, colour))
        parts.append(text(x + 13, y + 17, str(rank), "in"))
    parts += [text(20 + 170 * pp, 40, f"stage {pp}", "soft") for pp in range(4)]
    note = "red: no dump, no heartbeat; orange: waits in a collective with it; grey: behind them"
    parts.append(text(20, 204, note, "soft"))
    return page(700, 216, parts, "Ranks of a layout and whom they wait for in a hang")


def ladder() -> str:
    """MFU by technique, predicted and as the paper's Table 3 has it."""
    rungs = paper_ladder().rungs
    top = max(max(r.predicted, r.published) for r in rungs)
    parts = [text(8, 16, "175B on 256 GPUs: MFU with one technique after the other")]
    for number, rung in enumerate(rungs):
        y = 28 + 34 * number
        parts.append(text(210, y + 17, rung.step, "end"))
        parts.append(box(220, y, 380 * rung.predicted / top, 12, "a"))
        parts.append(
            text(226 + 380 * rung.predicted / top, y + 10, _percent(rung.predicted), "soft")
        )
        if rung.published:
            parts.append(box(220, y + 13, 380 * rung.published / top, 12, "e"))
            parts.append(
                text(226 + 380 * rung.published / top, y + 24, _percent(rung.published), "soft")
            )
    y = 28 + 34 * len(rungs)
    parts.append(text(220, y + 12, "blue: predicted here, yellow: the paper's Table 3", "soft"))
    return page(700, y + 24, parts, "Ablation ladder, predicted and published")


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


PICTURES: dict[str, Callable[[], str]] = {
    "schedule-grid.svg": schedule_grid,
    "timeline.svg": timeline,
    "heat-map.svg": heat,
    "waterfall.svg": waterfall,
    "hang.svg": hang,
    "ladder.svg": ladder,
    "checkpoints.svg": checkpoints,
    "start-up.svg": start_up,
}
"""File under docs/pictures -> the function that draws it."""


def stale(names: tuple[str, ...] = tuple(PICTURES)) -> dict[str, str]:
    """Pictures that differ from what the code draws, with what they should be."""
    found = {}
    for name in names:
        path, drawn = FOLDER / name, PICTURES[name]()
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            found[name] = drawn
    return found


def main() -> int:
    """Write or check."""
    changed = stale()
    for name, drawn in changed.items():
        print(f"{'stale' if '--check' in sys.argv else 'wrote'}: docs/pictures/{name}")
        if "--check" not in sys.argv:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(drawn, encoding="utf-8")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
