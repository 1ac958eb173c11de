"""Predict every run of a table and say how far off: by row, by source group, by hardware, overall.

Score: mean absolute percentage error of each source group, then the plain mean over the groups, so
that a sweep of a hundred rows counts as much as one hand-checked run.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from engine.plan.lines import LinePoint, LineScore, score_lines
from engine.plan.memory import fits, peak_memory
from engine.plan.price import price
from engine.plan.profiles import Fitted, fitted
from engine.plan.rows import Case, case_of, read_rows
from engine.plan.search import Z80
from engine.plan.setup import PlanLayout, grid_of, single
from engine.plan.simulate import scalars, step_of
from engine.plan.words import Row
from engine.spec.base import Noun, doc


class RowScore(Noun, frozen=True, kw_only=True):
    """One run: predicted against measured."""

    id: str
    group: str
    hardware: str
    system: str
    predicted_s: float
    measured_s: float
    error: Annotated[float, doc("predicted / measured - 1")]
    p10_s: float
    p90_s: float
    slope_s: Annotated[float, doc("seconds per micro-batch of a replica")]
    intercept_s: Annotated[float, doc("seconds a step has beyond its micro-batches")]
    assumptions: tuple[str, ...]


class GroupScore(Noun, frozen=True, kw_only=True):
    """A set of rows: mean absolute and mean signed error, the worst row."""

    name: str
    rows: int
    mape: float
    bias: float
    worst: float
    worst_id: str


class Summary(Noun, frozen=True, kw_only=True):
    """The whole table."""

    mape: Annotated[float, doc("mean over source groups of each group's mean absolute error")]
    row_mape: Annotated[float, doc("mean absolute error over rows")]
    rows: int
    skipped: int
    coverage: Annotated[float, doc("share of rows between P10 and P90")]


class MemoryScore(Noun, frozen=True, kw_only=True):
    """Peak memory and does-it-fit over the rows that have a label."""

    rows: int = 0
    mape: float = 0.0
    trials: int = 0
    right: float = 0.0
    false_fits: Annotated[float, doc("trials said to fit that did not, of all trials")] = 0.0
    false_refusals: float = 0.0


class Skipped(Noun, frozen=True, kw_only=True):
    """A row that was not predicted, and why."""

    id: str
    reason: str


class Validation(Noun, frozen=True, kw_only=True):
    """The answer of `msctl plan --validate`."""

    summary: Summary
    groups: tuple[GroupScore, ...]
    hardware: tuple[GroupScore, ...]
    rows: tuple[RowScore, ...]
    lines: Annotated[tuple[LineScore, ...], doc("slope and intercept, where rows make a line")]
    memory: MemoryScore
    skipped: tuple[Skipped, ...]


def validate(path: Path, constants: Fitted | None = None) -> Validation:
    """Predict and score a table of runs."""
    use = constants or fitted()
    cases, skipped = cases_of(read_rows(path), use)
    timed = [case for case in cases if case.measured_s > 0]
    found = [(case, *predict(case)) for case in timed]
    rows = tuple(score_row(case, use, (s, x, slope)) for case, s, x, slope in found)
    groups = grouped(rows, lambda r: r.group)
    inside = [r.p10_s <= r.measured_s <= r.p90_s for r in rows]
    return Validation(
        summary=Summary(
            mape=_mean([g.mape for g in groups]),
            row_mape=_mean([abs(r.error) for r in rows]),
            rows=len(rows),
            skipped=len(skipped),
            coverage=_mean([float(x) for x in inside]),
        ),
        groups=groups,
        hardware=grouped(rows, lambda r: r.hardware),
        rows=rows,
        lines=score_lines([LinePoint(c.group, c.job, x, c.measured_s, s) for c, s, x, _ in found]),
        memory=score_memory(cases),
        skipped=tuple(skipped),
    )


def cases_of(rows: Iterable[Row], constants: Fitted) -> tuple[list[Case], list[Skipped]]:
    """The rows that can be predicted, and the others with the reason."""
    cases, skipped = [], []
    for row in rows:
        case = case_of(row, constants)
        if isinstance(case, str):
            skipped.append(Skipped(id=row.get("id", "?"), reason=case))
        else:
            cases.append(case)
    return cases, skipped


def score_row(case: Case, constants: Fitted, found: tuple[float, PlanLayout, float]) -> RowScore:
    """A run and what `predict` found for it."""
    seconds, layout, slope = found
    spread = float(np.exp(Z80 * (case.job.profile.log_error or constants.log_error)))
    m = max(1.0, case.job.global_batch / (layout.dp * layout.micro_batch))
    return RowScore(
        id=case.id,
        group=case.group,
        hardware=case.hardware,
        system=case.job.profile.name,
        predicted_s=seconds,
        measured_s=case.measured_s,
        error=seconds / case.measured_s - 1.0,
        p10_s=seconds / spread,
        p90_s=seconds * spread,
        slope_s=slope,
        intercept_s=seconds - m * slope,
        assumptions=case.assumptions,
    )


def predict(case: Case) -> tuple[float, PlanLayout, float]:
    """Seconds of a step, with which layout (the fastest of those left open), per micro-batch."""
    best: tuple[float, PlanLayout, float] | None = None
    for layout in fitting(case):
        prices = scalars(price(case.job, single(layout)))
        slope = layout.vpp * (prices.chunk_f + prices.chunk_b)
        if case.layers_only:  # a table of single layers: no step around them
            found = (prices.chunk_f + prices.chunk_b, layout, slope)
        else:
            found = (step_of(case.job, layout, prices).step_s, layout, slope)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None, "a case has at least one layout"
    return best


def fitting(case: Case) -> tuple[PlanLayout, ...]:
    """The layouts left open that fit in memory; all of them if none does."""
    if len(case.layouts) == 1:
        return case.layouts
    total = peak_memory(case.job, grid_of(case.layouts)).total
    limit = case.job.cluster.device.memory_bytes
    kept = tuple(x for x, size in zip(case.layouts, total, strict=True) if size <= limit)
    return kept or case.layouts[:1]


def grouped(rows: Sequence[RowScore], key: "object") -> tuple[GroupScore, ...]:
    """Scores of the sets of rows that share a key."""
    sets: dict[str, list[RowScore]] = defaultdict(list)
    for row in rows:
        sets[key(row)].append(row)  # type: ignore[operator]
    scores = []
    for name, members in sorted(sets.items()):
        worst = max(members, key=lambda r: abs(r.error))
        scores.append(
            GroupScore(
                name=name,
                rows=len(members),
                mape=_mean([abs(r.error) for r in members]),
                bias=_mean([r.error for r in members]),
                worst=worst.error,
                worst_id=worst.id,
            )
        )
    return tuple(scores)


def score_memory(cases: Sequence[Case]) -> MemoryScore:
    """Peak memory against measured, and fits against does not fit."""
    errors, outcomes = [], []
    for case in cases:
        if not case.measured_bytes and case.fits < 0:
            continue
        peak = peak_memory(case.job, grid_of(case.layouts[:1]))
        total = float(peak.total[0])
        if case.measured_bytes:
            errors.append(abs(total / case.measured_bytes - 1.0))
        if case.fits >= 0:
            outcomes.append((bool(fits(case.job, peak)[0]), case.fits == 1))
    return MemoryScore(
        rows=len(errors),
        mape=_mean(errors),
        trials=len(outcomes),
        right=_mean([float(said == did) for said, did in outcomes]),
        false_fits=_mean([float(said and not did) for said, did in outcomes]),
        false_refusals=_mean([float(did and not said) for said, did in outcomes]),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
