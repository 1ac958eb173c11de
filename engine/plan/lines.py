"""Slope and intercept of a system, scored apart: totals can be right while both are wrong.

Runs that differ only in their number of micro-batches (and replicas) lie on a line: seconds per
micro-batch times their number, and what a step costs beyond. Both are regressed from measured and
from predicted times, relative errors minimised, and compared.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from engine.plan.setup import Job, PlanLayout
from engine.spec.base import Noun, doc

LEAST = 3
"""Numbers of micro-batches that a line needs."""

_SPAN = 2.0
"""Largest over smallest number of micro-batches: closer ones say nothing of the intercept."""


class LinePoint(NamedTuple):
    """A run: what it has in common with others of its line, its micro-batches, its times."""

    group: str
    job: Job
    layout: PlanLayout
    measured_s: float
    predicted_s: float


class LineScore(Noun, frozen=True, kw_only=True):
    """One line: seconds per micro-batch and per step, measured and predicted."""

    group: str
    system: str
    runs: int
    shape: Annotated[str, doc("what the runs have in common")]
    slope_s: float
    predicted_slope_s: float
    intercept_s: float
    predicted_intercept_s: float


def score_lines(points: Sequence[LinePoint]) -> tuple[LineScore, ...]:
    """Every set of runs that makes a line."""
    sets: dict[tuple[str, ...], list[LinePoint]] = defaultdict(list)
    for point in points:
        sets[_key(point)].append(point)
    found = []
    for (group, system, shape), members in sorted(sets.items()):
        m = np.array([_microbatches(p) for p in members])
        if len(set(m)) < LEAST or m.max() < _SPAN * m.min():
            continue
        slope, intercept = regress(m, np.array([p.measured_s for p in members]))
        ours, rest = regress(m, np.array([p.predicted_s for p in members]))
        found.append(
            LineScore(
                group=group, system=system, runs=len(members), shape=shape, slope_s=slope,
                predicted_slope_s=ours, intercept_s=intercept, predicted_intercept_s=rest,
            )
        )  # fmt: skip
    return tuple(found)


def regress(
    m: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    seconds: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> tuple[float, float]:
    """Slope and intercept of seconds over micro-batches, relative errors minimised."""
    table = np.stack([m, np.ones_like(m)], axis=1) / seconds[:, None]
    slope, intercept = np.linalg.lstsq(table, np.ones_like(seconds), rcond=None)[0]
    return float(slope), float(intercept)


def _key(point: LinePoint) -> tuple[str, str, str]:
    model, layout = point.job.model, point.layout
    shape = (
        f"{model.layers} layers of {model.hidden} x {model.seq}, "
        f"tp {layout.tp} pp {layout.pp} vpp {layout.vpp} cp {layout.cp} "
        f"micro-batch {layout.micro_batch} {point.job.precision} "
        f"{point.job.cluster.device.name} recompute {layout.recompute} "
        f"ZeRO-{layout.zero}" + (f" over {layout.shard}" if layout.shard else "")
    )
    return point.group, point.job.profile.name, shape


def _microbatches(point: LinePoint) -> float:
    return float(point.job.global_batch / (point.layout.dp * point.layout.micro_batch))
