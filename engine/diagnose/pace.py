"""What slows a run of ours: stragglers, collection pauses, the input pipeline, a step that grows.

Each detector gives its cost as a share of the step, so that the arbiter can order them.
"""

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.load import Spans
from engine.diagnose.parts import COMPUTE, LABELS
from engine.diagnose.peers import places
from engine.diagnose.straggler import Slow, find_slow
from engine.diagnose.times import own_work, steady
from engine.units import show_ratio, show_seconds

MIN_COST = 0.01
"""One per cent of a step: below it a slowness is not reported."""
_SHOWN = 16


def find_pace(spans: Spans) -> list[Finding]:
    """Everything that costs at least one per cent of a step."""
    use = steady(spans)
    if use.sum() < 3:
        return []
    step_s = float(np.nanmean(spans.step_s[:, use]))
    found = stragglers(spans, step_s)
    found += [f for f in (collections(spans, use, step_s), input_pipeline(spans, use, step_s)) if f]
    return found


def stragglers(spans: Spans, step_s: float) -> list[Finding]:
    """Ranks and nodes whose forward and backward take longer than their peers'."""
    use = steady(spans)
    own = own_work(spans, COMPUTE)
    at = places(spans.layout, spans.ranks)
    slow = find_slow(own, at, spans.ranks)
    typical = float(np.median(own.mean(axis=1)))
    steps = spans.steps[use]
    return [
        slow_finding(
            s, min(1.0, s.excess * typical / step_s), _part(spans, use, s), int(steps[s.first])
        )
        for s in slow[:_SHOWN]
        if s.excess * typical / step_s >= MIN_COST
    ]


def slow_finding(slow: Slow, cost: float, part: str, first: int) -> Finding:
    """The finding of a slow rank or node."""
    who = (
        f"rank {slow.ranks[0]}"
        if len(slow.ranks) == 1
        else f"ranks {slow.ranks[0]}-{slow.ranks[-1]} (one node)"
    )
    pattern = {"constant": "all the time", "bursts": "in bursts", "drift": "more and more"}[
        slow.pattern
    ]
    why = f"{slow.z:.0f} deviations from peers of its stage and replica, clocks not compared"
    if slow.pattern == "drift":
        why += f"; now {show_ratio(slow.now)}, growing {100 * slow.per_step:.2g} points a step"
    return Finding(
        kind="straggler",
        category="perf_straggler",
        ranks=slow.ranks,
        step=first,
        cost=cost,
        what=f"{who} computes {show_ratio(slow.excess)} longer than its peers, {pattern}",
        why=f"{why}; mostly {part}" if part else why,
        confidence=min(0.99, 0.5 + slow.z / 40),
        source="peers",
        evidence=(
            Evidence(
                rank=slow.ranks[0], text=f"excess {show_ratio(slow.excess)} from step {first}"
            ),
        ),
        next=next_step("perf_straggler"),
    )


def _part(spans: Spans, use: NDArray[np.bool_], slow: Slow) -> str:
    """The part in which a slow rank loses most."""
    rows = np.isin(spans.ranks, slow.ranks)
    stage = spans.ranks // (spans.layout.tp * spans.layout.dp)
    mates = np.isin(stage, stage[rows]) & ~rows
    if not mates.any():
        return ""
    extra = {
        part: float(spans.seconds[part][rows][:, use].mean())
        - float(np.median(spans.seconds[part][mates][:, use].mean(axis=1)))
        for part in COMPUTE
    }
    return LABELS[max(extra, key=lambda part: extra[part])]


def collections(spans: Spans, use: NDArray[np.bool_], step_s: float) -> Finding | None:
    """Garbage collection: a pause holds everybody, so the cost is the step's worst rank."""
    pause = spans.seconds["gc"][:, use]
    worst = pause.max(axis=0)
    cost = float(worst.mean()) / step_s
    if cost < MIN_COST:
        return None
    hit = worst > 0.02 * step_s
    together = float((pause[:, hit] > 0.02 * step_s).mean()) if hit.any() else 0.0
    ranks = np.flatnonzero(pause.max(axis=1) > 0.02 * step_s)
    listed = tuple(int(spans.ranks[r]) for r in ranks[:_SHOWN]) if len(ranks) <= _SHOWN else ()
    return Finding(
        kind="perf",
        category="perf_gc",
        cost=min(1.0, cost),
        confidence=0.9,
        source="gc spans",
        ranks=listed,
        what=f"garbage collection holds {show_ratio(float(hit.mean()))} of the steps for "
        f"{show_seconds(float(worst[hit].mean()) if hit.any() else 0.0)} each",
        why=f"it costs {show_ratio(cost)} of the step time; "
        f"{'ranks collect at different steps' if together < 0.5 else 'ranks collect together'}",
        next=next_step("perf_gc"),
    )


def input_pipeline(spans: Spans, use: NDArray[np.bool_], step_s: float) -> Finding | None:
    """Waiting for data: the cost is the slowest rank's wait of each step."""
    wait = spans.seconds["data"][:, use]
    worst = wait.max(axis=0)
    cost = float(worst.mean()) / step_s
    if cost < 0.05:
        return None
    rank = int(spans.ranks[int(np.argmax(wait.mean(axis=1)))])
    return Finding(
        kind="perf",
        category="perf_data",
        cost=min(1.0, cost),
        confidence=0.8,
        source="data spans",
        what=f"waiting for data takes {show_ratio(cost)} of the step",
        why=f"longest on rank {rank}: {show_seconds(float(wait.mean(axis=1).max()))} a step",
        next=next_step("perf_data"),
    )
