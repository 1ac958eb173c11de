"""Slowness of foreign jobs: segments and traces, by the same statistic as our own."""

from collections.abc import Iterable

import numpy as np

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.pace import MIN_COST, slow_finding
from engine.diagnose.parts import COMPUTE, LABELS
from engine.diagnose.peers import Places
from engine.diagnose.readers.job import Job
from engine.diagnose.readers.kineto import Trace, own_columns
from engine.diagnose.readers.segments import Segments
from engine.diagnose.straggler import find_slow
from engine.units import show_ratio


def segment_findings(segments: Segments | None, job: Job) -> list[Finding]:
    """Stragglers and pauses out of timed segments; the first step is warm-up."""
    if segments is None or len(segments.steps) < 4:
        return []
    seconds = {part: values[:, 1:] for part, values in segments.seconds.items()}
    segments = segments._replace(steps=segments.steps[1:], seconds=seconds)
    own = sum((segments.seconds[p] for p in COMPUTE), np.zeros_like(segments.seconds["forward"]))
    step = sum(segments.seconds.values(), np.zeros_like(own))
    step_s = float(np.median(step.mean(axis=1)))
    if step_s <= 0:
        return []
    found = []
    if own.any():
        at = _places(segments.ranks, job)
        for slow in find_slow(own, at, segments.ranks):
            cost = min(1.0, slow.excess * float(np.median(own.mean(axis=1))) / step_s)
            if cost >= MIN_COST:
                found.append(slow_finding(slow, cost, "", int(segments.steps[slow.first])))
    return found + _pauses(segments, step_s)


def _pauses(segments: Segments, step_s: float) -> list[Finding]:
    """Garbage collection and data waits that cost at least one per cent of a step."""
    found = []
    for part, category in (("gc", "perf_gc"), ("data", "perf_data")):
        worst = segments.seconds[part].max(axis=0)
        cost = float(worst.mean()) / step_s
        if cost < (MIN_COST if part == "gc" else 0.2):
            continue
        share = float((worst > 0.02 * step_s).mean())
        found.append(
            Finding(
                kind="perf",
                category=category,
                cost=min(1.0, cost),
                confidence=0.85,
                what=f"{LABELS[part]} holds {show_ratio(share)} of the steps",
                why=f"the worst rank's {LABELS[part]} costs {show_ratio(cost)} of the step time",
                source="segments",
                next=next_step(category),
                evidence=(
                    Evidence(text=f"mean of the worst rank {1e3 * float(worst.mean()):.1f} ms"),
                ),
            )
        )
    return found


def _places(ranks: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]", job: Job) -> Places:
    stage = np.array([job.place("pp", r) for r in ranks.tolist()], np.int32)
    replica = np.array([job.place("dp", r) for r in ranks.tolist()], np.int32)
    return Places(stage, replica)


def trace_findings(traces: Iterable[Trace], job: Job) -> list[Finding]:
    """Ranks whose kernels take longer than the same kernels of ranks that launch the same ones."""
    found = []
    for ranks, own in own_columns(traces):
        if len(ranks) < 2 or own.shape[1] < 8:
            continue
        numbers = np.array(ranks, np.int32)
        order = np.argsort(numbers)
        alone = np.zeros(len(ranks), np.int32)
        for slow in find_slow(own[order], Places(alone, alone), numbers[order]):
            found.append(slow_finding(slow, min(1.0, slow.excess), "kernels", 0))
    return found
