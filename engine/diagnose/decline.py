"""A step that grows over thousands of steps: by how much, since when, and which part of it.

The paper found its MFU falling over days by exactly this: forward time that crept up and irregular
pauses. Medians of equal stretches of the run are compared, so that single slow steps do not
count; a trend has to rise through nearly all of them.
"""

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.load import Spans
from engine.diagnose.parts import LABELS, PARTS
from engine.diagnose.record import Record
from engine.diagnose.times import steady
from engine.units import show_ratio, show_seconds

_LEAST = 200
"""Steps below which growth is not told from a busy machine."""
_STRETCHES = 12
_RISING = 0.85
"""Rank correlation of the stretches with time from which a rise is a trend."""
_GROWTH = 0.03


def find_decline(spans: Spans, record: Record, slow: list[Finding]) -> list[Finding]:
    """The finding of a step that grows, none if it does not.

    slow are the stragglers found: a rank that gets slower and slower explains the growth of waits.
    """
    use = steady(spans)
    if int(use.sum()) < _LEAST:
        return []
    medians = _medians(np.nanmean(spans.step_s[:, use], axis=0))
    growth = _trend(medians)
    if growth is None:
        return []
    parts = {p: _gain(spans.seconds[p][:, use].mean(axis=0)) for p in PARTS if p in spans.seconds}
    part = max(parts, key=lambda name: parts[name])
    drifting = [f for f in slow if "more and more" in f.what]
    if part.startswith("wait") and drifting:
        return []
    now, before = float(medians[-1]), float(medians[0])
    numbers = spans.steps[use]
    share = min(1.0, parts[part] / max(now - before, 1e-12))
    first = int(numbers[_since(medians) * len(numbers) // _STRETCHES])
    mfu = _mfu(record)
    return [
        Finding(
            kind="perf",
            category="perf_drift",
            step=first,
            cost=min(1.0, (now - before) / now),
            confidence=0.8,
            source="trend",
            what=f"the step grows by {show_ratio(growth)} over {len(numbers)} steps, mostly its "
            f"{LABELS[part]}",
            why=f"median step {show_seconds(before)} at the start, {show_seconds(now)} at the end; "
            f"{show_ratio(share)} of the growth is {LABELS[part]}{mfu}",
            evidence=(
                Evidence(text=f"medians of {_STRETCHES} stretches rise from step {first} on"),
            ),
            next=next_step("perf_drift"),
        )
    ]


def _medians(series: NDArray[np.floating]) -> NDArray[np.float64]:
    """Medians of equal stretches of a series."""
    return np.array([float(np.nanmedian(part)) for part in np.array_split(series, _STRETCHES)])


def _trend(medians: NDArray[np.float64]) -> float | None:
    """Relative growth from the first to the last stretches, None if it is no trend."""
    if not (medians > 0).all():
        return None
    order = np.argsort(np.argsort(medians))
    rising = float(np.corrcoef(order, np.arange(len(medians)))[0, 1])
    growth = float(medians[-2:].mean() / medians[:2].mean() - 1)
    return growth if rising >= _RISING and growth >= _GROWTH else None


def _gain(series: NDArray[np.floating]) -> float:
    """Seconds that a part gained between the first and the last stretch."""
    medians = _medians(series)
    return float(medians[-1] - medians[0])


def _since(medians: NDArray[np.float64]) -> int:
    """The stretch from which on the step stays above its start by a fifth of the whole growth."""
    limit = medians[0] + 0.2 * (medians[-1] - medians[0])
    below = np.flatnonzero(medians <= limit)
    return min(int(below[-1]) + 1, len(medians) - 1)


def _mfu(record: Record) -> str:
    """`; MFU fell from 41 % to 38 %`, from the run's own metrics."""
    known = [m.mfu for m in record.metrics[1:] if m.mfu]
    if len(known) < _LEAST:
        return ""
    tenth = len(known) // 10
    before, now = float(np.median(known[:tenth])), float(np.median(known[-tenth:]))
    return f"; MFU fell from {show_ratio(before)} to {show_ratio(now)}" if now < before else ""
