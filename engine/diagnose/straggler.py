"""Slow ranks: own work against peers, by a median, by bursts, and by drift (paper 5.1).

Three statistics on the excess over peers [ranks, steps]: the median sees constant slowness, the
clipped mean sees bursts that a median forgives, the slope sees drift. Each is scaled by its own
spread over all ranks, so that fleets whose devices differ a little raise their own threshold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.peers import Places, excess

MIN_EXCESS = 0.02
"""Below two per cent of own work a straggler is not worth a drained node."""
MIN_Z = 6.0
"""Of 12,288 normal ranks none passes six deviations."""
GPUS_PER_NODE = 8


class Slow(NamedTuple):
    """One slow rank, or several of a node."""

    ranks: tuple[int, ...]
    pattern: str
    """constant, bursts or drift."""
    excess: float
    """Mean share of extra own work over the window."""
    now: float
    """The same over the last quarter."""
    z: float
    per_step: float
    """Share of extra work per step of a drift, else 0."""
    first: int
    """Column of the first step at which it shows."""


def find_slow(
    own: NDArray[np.float32], at: Places, ranks: NDArray[np.int32], *, node: int = GPUS_PER_NODE
) -> list[Slow]:
    """Ranks whose own work [ranks, steps] takes longer than their peers', worst first.

    When at least half of a node's ranks are slow the node is one entry.
    """
    if own.shape[1] == 0 or len(ranks) < 2:
        return []
    over = excess(own, at)
    scale = _spread(over)
    if scale is None:
        return []
    stats = _statistics(over, scale)
    by_rank = _flag(stats, MIN_Z)
    whole = _nodes(stats, ranks, node)
    slow: list[Slow] = []
    taken: set[int] = set()
    for rows in whole:
        slow.append(_describe(over, rows, ranks, stats))
        taken.update(rows.tolist())
    for row in np.flatnonzero(by_rank).tolist():
        if row not in taken:
            slow.append(_describe(over, np.array([row]), ranks, stats))
    return sorted(slow, key=lambda s: -s.excess * len(s.ranks) ** 0.5)


class _Stats(NamedTuple):
    median: NDArray[np.float32]
    mean: NDArray[np.float32]
    slope: NDArray[np.float32]
    z_median: NDArray[np.float32]
    z_mean: NDArray[np.float32]
    z_slope: NDArray[np.float32]


def _spread(over: NDArray[np.float32]) -> float | None:
    """Robust deviation of one rank in one step; None if nothing varies at all."""
    sample = over if over.size <= 2_000_000 else over[:: over.size // 2_000_000 + 1]
    scale = float(1.4826 * np.median(np.abs(sample - np.median(sample))))
    return max(scale, 1e-4) if np.isfinite(scale) else None


def _statistics(over: NDArray[np.float32], scale: float) -> _Stats:
    """Median, clipped mean and slope of each rank with their robust scores."""
    steps = over.shape[1]
    median = np.median(over, axis=1)
    clip = max(6 * scale, 0.25)
    clipped = np.clip(over, -clip, clip)
    mean = clipped.mean(axis=1)
    x = np.linspace(-0.5, 0.5, steps, dtype=np.float32)
    slope = clipped @ x / max(float(x @ x), 1e-9) if steps >= 8 else np.zeros_like(mean)
    root = steps**0.5
    return _Stats(
        median, mean, slope, _score(median, 1.2533 * scale / root), _score(mean, scale / root),
        _score(slope, scale / max(float(x @ x) ** 0.5, 1e-9)),
    )  # fmt: skip


def _score(values: NDArray[np.float32], floor: float) -> NDArray[np.float32]:
    """Deviations from the fleet's middle, in the larger of measured and expected spread.

    Of fewer than eight ranks a slow one would widen its own yardstick: the quicker half counts.
    """
    if len(values) < 8:
        middle = np.sort(values)[(len(values) - 1) // 2]
        spread = 1.4826 * np.median(middle - values[values <= middle])
        floor *= 1.5
    else:
        middle = np.median(values)
        spread = 1.4826 * np.median(np.abs(values - middle))
    return np.asarray((values - middle) / max(float(spread), floor, 1e-6), np.float32)


def _flag(stats: _Stats, limit: float, least: float = MIN_EXCESS) -> NDArray[np.bool_]:
    """Rows that are slow by at least one statistic and by enough to matter."""
    constant = (stats.z_median > limit) & (stats.median > least)
    bursts = (stats.z_mean > limit) & (stats.mean > least)
    drift = (stats.z_slope > limit) & (stats.slope > 2 * least) & (stats.mean > 0.25 * least)
    flagged: NDArray[np.bool_] = constant | bursts | drift
    return flagged


def _nodes(stats: _Stats, ranks: NDArray[np.int32], node: int) -> list[NDArray[np.int64]]:
    """Rows of nodes of which at least half the ranks are slow by a milder limit."""
    if len(ranks) < 2 * node:
        return []
    mild = _flag(stats, 3.5, 0.75 * MIN_EXCESS)
    strong = _flag(stats, MIN_Z)
    numbers = ranks // node
    votes = np.bincount(numbers, weights=mild)
    sure = np.bincount(numbers, weights=strong)
    size = np.bincount(numbers)
    hit = np.flatnonzero((2 * votes >= size) & (size > 1) & ((sure >= 1) | (votes == size)))
    return [np.flatnonzero(numbers == number) for number in hit.tolist()]


def _describe(
    over: NDArray[np.float32], rows: NDArray[np.int64], ranks: NDArray[np.int32], stats: _Stats
) -> Slow:
    """Pattern, size and onset of one slow rank or node."""
    series = np.median(over[rows], axis=0)
    steps = len(series)
    scores = {
        "constant": float(np.median(stats.z_median[rows])),
        "bursts": float(np.median(stats.z_mean[rows])),
        "drift": float(np.median(stats.z_slope[rows])),
    }
    quarter = max(1, steps // 4)
    late, early = float(series[-quarter:].mean()), float(series[:quarter].mean())
    mean = float(series.mean())
    middle = float(np.median(series))
    half = float((series > max(mean, 0.5 * MIN_EXCESS)).mean())
    if steps >= 8 and late > early + max(0.5 * mean, MIN_EXCESS) and scores["drift"] > 4:
        pattern = "drift"
    elif middle < 0.5 * mean and half < 0.5:
        pattern = "bursts"
    else:
        pattern = "constant"
    slope = float(np.median(stats.slope[rows])) / max(1, steps - 1) if pattern == "drift" else 0.0
    shows = np.flatnonzero(series > max(0.5 * mean, MIN_EXCESS))
    return Slow(
        tuple(int(r) for r in ranks[rows]), pattern, mean, late, max(scores.values()), slope,
        int(shows[0]) if len(shows) else 0,
    )  # fmt: skip
