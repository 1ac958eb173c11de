"""The measured step against the simulated one: where each point of MFU went (paper 6.3).

The schedule of the run is simulated with the measured medians of its stages and transfers that
take no time. What the simulation idles is the bubble; what the run waited beyond it is exposed;
what it takes with a slow rank's own durations instead of its stage's median is what that rank
costs.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.finding import Attribution, Finding, WaterfallRow, WhatIf
from engine.diagnose.load import Spans
from engine.diagnose.parts import COMPUTE
from engine.diagnose.record import Record
from engine.diagnose.times import steady
from engine.errors import LayoutError
from engine.schedule.action import Action, Kind
from engine.schedule.build import build
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import Simulation, simulate
from engine.spec.recipe import ScheduleSpec

_NAMES = {
    Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.BACKWARD_INPUT: "backward_input",
    Kind.BACKWARD_WEIGHT: "backward_weight",
}  # fmt: skip
_PIPELINES = 64
"""Pipelines with slow ranks that are simulated one by one."""


class Model(NamedTuple):
    """The run as a simulation: its schedule and stage medians."""

    schedule: Schedule
    medians: dict[tuple[str, int], float]
    base: Simulation


def attribute(spans: Spans, record: Record, findings: Iterable[Finding] = ()) -> Attribution | None:
    """Where the step and each point of MFU went; None if no step or no schedule is known."""
    use = steady(spans)
    model = model_of(spans, record)
    if model is None or not use.any():
        return None
    inside_s = float(np.nanmean(spans.step_s[:, use]))
    step_s = float(sum(values[:, use].mean() for values in spans.seconds.values()))
    if not step_s > 0 or not inside_s > 0:
        return None
    slow = [f for f in findings if f.category == "perf_straggler" and f.ranks]
    losses = {f.what: _loss_s(spans, model, f.ranks) for f in slow}
    everyone = _loss_s(spans, model, sorted({r for f in slow for r in f.ranks}))
    rows = _rows(spans, use, model, everyone)
    mfu = record.mfu and record.mfu * min(1.0, inside_s / step_s)
    waterfall = tuple(_points(rows, step_s, mfu))
    what_if = [
        WhatIf(
            without=f"rank {f.ranks[0]}'s slowness" if len(f.ranks) == 1
            else f"the slowness of ranks {f.ranks[0]}-{f.ranks[-1]}",
            step_s=step_s - losses[f.what], gain=losses[f.what] / step_s,
            mfu_points=_gained(mfu, step_s, losses[f.what]),
        )
        for f in slow
    ]  # fmt: skip
    for name, text in _HIDEABLE.items():
        seconds = dict(rows).get(name, 0.0)
        if seconds > 0.005 * step_s:
            gained = _gained(mfu, step_s, seconds)
            what_if.append(
                WhatIf(
                    without=text, step_s=step_s - seconds, gain=seconds / step_s, mfu_points=gained
                )
            )
    return Attribution(
        measured_s=step_s, ideal_s=model.base.makespan_s, mfu=mfu, rows=waterfall,
        critical_path=critical_path(model), what_if=tuple(sorted(what_if, key=lambda w: -w.gain)),
    )  # fmt: skip


_HIDEABLE = {
    "bubble": "the pipeline bubble",
    "exposed pp": "exposed pipeline transfers",
    "exposed dp": "exposed data-parallel traffic",
    "tensor parallel": "tensor-parallel communication",
    "data": "waiting for data",
    "checkpoint": "checkpoint stalls",
    "garbage collection": "garbage collection",
}


_MOST_ACTIONS = 1 << 20
"""Micro-batches times chunks: a file that names more is not simulated."""


def model_of(spans: Spans, record: Record) -> Model | None:
    """The schedule of a run with its stage medians, simulated without transfers."""
    chunks = 1 + max((chunk for _, chunk in spans.actions), default=-1)
    pp = spans.layout.pp
    if chunks < pp or chunks % pp or chunks * spans.microbatches > _MOST_ACTIONS:
        return None
    spec = record.recipe.schedule if record.recipe is not None else ScheduleSpec()
    try:
        schedule = build(
            spec.kind, pp, chunks // pp, spans.microbatches, spec.group, spec.run_ahead
        )
    except LayoutError:
        return None
    medians = {
        key: float(np.median(list(by_rank.values()))) for key, by_rank in spans.actions.items()
    }
    try:
        return Model(schedule, medians, simulate(schedule, duration_of(medians)))
    except (LayoutError, KeyError):
        return None


def duration_of(seconds: dict[tuple[str, int], float]) -> Callable[[Action], float]:
    """Durations by direction and chunk; transfers take none."""

    def duration(action: Action) -> float:
        name = _NAMES.get(action.kind)
        return 0.0 if name is None else seconds.get((name, action.chunk), 0.0)

    return duration


def _loss_s(spans: Spans, model: Model, ranks: Iterable[int]) -> float:
    """Seconds that the step grows when these ranks take their own time, not the median's."""
    layout = spans.layout
    lines = sorted({(spans.coord(r).tp, spans.coord(r).dp) for r in ranks})[:_PIPELINES]
    named = set(ranks)
    worst = model.base.makespan_s
    for tp, dp in lines:
        own = dict(model.medians)
        for (name, chunk), by_rank in spans.actions.items():
            stage = model.schedule.stage_of(chunk)
            rank = tp + layout.tp * (dp + layout.dp * stage)
            if rank in named and rank in by_rank:
                own[name, chunk] = by_rank[rank]
        worst = max(worst, simulate(model.schedule, duration_of(own)).makespan_s)
    return worst - model.base.makespan_s


def _rows(
    spans: Spans, use: NDArray[np.bool_], model: Model, slow_s: float
) -> list[tuple[str, float]]:
    """Seconds of an average rank's step by loss; they sum to the step."""
    mean = {part: float(values[:, use].mean()) for part, values in spans.seconds.items()}
    stages = range(spans.layout.pp)
    busy = [model.base.busy_s(stage) for stage in stages]
    compute = sum(mean[part] for part in COMPUTE)
    ideal = float(np.mean(busy))
    waits = mean["wait_pp"] + mean["wait_dp"]
    bubble = min(model.base.makespan_s - ideal, waits)
    slow = min(slow_s, waits + mean["wait_tp"] - bubble)
    pp = max(0.0, mean["wait_pp"] - bubble)
    dp = mean["wait_dp"] - max(0.0, bubble - mean["wait_pp"])
    tp = mean["wait_tp"]
    total = max(pp + dp + tp, 1e-12)
    pp, dp, tp = (value - slow * value / total for value in (pp, dp, tp))
    rows = [
        ("compute", compute), ("bubble", bubble), ("stragglers", slow), ("tensor parallel", tp),
        ("exposed pp", pp), ("exposed dp", dp), ("data", mean["data"]),
        ("gradient norm", mean["clip"]), ("optimizer", mean["optimizer"]), ("tied", mean["tied"]),
        ("validation", mean["eval"]), ("comparison of replicas", mean["sdc"]),
        ("checkpoint", mean["checkpoint"]), ("garbage collection", mean["gc"]),
        ("other waits", mean["wait_other"]),
    ]  # fmt: skip
    rows = [(name, seconds) for name, seconds in rows if seconds > 0]
    return [*rows, ("unexplained", mean["other"])]


def _points(
    rows: list[tuple[str, float]], step_s: float, mfu: float | None
) -> Iterable[WaterfallRow]:
    """Rows in points of MFU: a loss its share of the step, compute what kernels miss."""
    for name, seconds in rows:
        share = seconds / step_s
        if name != "compute":
            yield WaterfallRow(name=name, seconds=seconds, points=share)
        elif mfu is None:
            yield WaterfallRow(name="compute", seconds=seconds, points=share)
        else:
            yield WaterfallRow(name="kernels below peak", seconds=seconds, points=share - mfu)


def _gained(mfu: float | None, step_s: float, seconds: float) -> float | None:
    """Points of MFU that a shorter step gives."""
    return None if mfu is None else mfu * step_s / max(step_s - seconds, 1e-12) - mfu


def critical_path(model: Model) -> tuple[str, ...]:
    """The chain of computations that fixes the step's length, by stage, first to last."""
    spans = [s for s in model.base.spans if s.lane == "compute"]
    if not spans:
        return ()
    by_end: dict[float, list[int]] = {}
    for number, span in enumerate(spans):
        by_end.setdefault(round(span.end_s, 9), []).append(number)
    at = max(range(len(spans)), key=lambda n: spans[n].end_s)
    chain = [spans[at]]
    for _ in range(len(spans)):
        start = round(spans[at].start_s, 9)
        before = [
            n for n in by_end.get(start, []) if n != at and spans[n].start_s < spans[at].start_s
        ]
        if not before:
            break
        at = next((n for n in before if spans[n].stage == spans[at].stage), before[0])
        chain.append(spans[at])
    return _legs([(s.stage, s.end_s - s.start_s) for s in reversed(chain)])


def _legs(chain: list[tuple[int, float]]) -> tuple[str, ...]:
    """A chain as legs of one stage: `stage 0: 4 actions, 0.12 s`."""
    legs: list[tuple[int, int, float]] = []
    for stage, seconds in chain:
        if legs and legs[-1][0] == stage:
            _, count, sum_s = legs[-1]
            legs[-1] = (stage, count + 1, sum_s + seconds)
        else:
            legs.append((stage, 1, seconds))
    return tuple(f"stage {s}: {n} actions, {t:.4g} s" for s, n, t in legs)
