"""Bound every combination of layout and system switches, not only the sensible ones.

The same formulas as the search, over all ZeRO stages, with and without sequence parallelism, every
divisor as a micro-batch, and all settings of the overlap and fusion switches: millions of
candidates in arrays. The lowest bounds are then simulated, as in the search.
"""

from itertools import product
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from engine.plan.memory import fits, peak_memory
from engine.plan.price import Price, price
from engine.plan.report import Candidate
from engine.plan.search import Space, broken_rules, candidate_of, divisors, enumerate_grid
from engine.plan.setup import RECOMPUTE, Grid, Job
from engine.plan.simulate import pipeline_of, step_of
from engine.spec.base import Noun, doc

_SLICE = 1 << 15
"""Layouts priced at once: arrays that stay in a core's cache."""


class Exhausted(Noun, frozen=True, kw_only=True):
    """What a complete search saw."""

    enumerated: Annotated[int, doc("combinations of layout and switches")]
    feasible: Annotated[int, doc("of them, those that break no rule")]
    simulated: int
    candidates: tuple[Candidate, ...]


class _Entry(NamedTuple):
    bound_s: float
    job: Job
    grid: Grid
    place: int


def exhaust(job: Job, gpus: int, *, top: int = 10) -> Exhausted:
    """Enumerate, refuse, bound and simulate everything."""
    grid = enumerate_grid(job, gpus, full_space(job))
    total = len(grid.tp)
    entries: list[_Entry] = []
    feasible = 0
    for fused in (False, True):  # the only switch that memory depends on
        one = _switched(job, fused=fused)
        alive = np.concatenate([_feasible(one, part) for part in _parts(grid)])
        kept = grid.take(alive)
        for tp, pp, dp in product((False, True), repeat=3):
            own = _switched(one, overlap_tp=tp, overlap_pp=pp, overlap_dp=dp)
            bounds = np.concatenate([_bounds(own, part) for part in _parts(kept)])
            feasible += len(bounds)
            for index in np.argsort(bounds, kind="stable")[: 4 * top]:
                entries.append(_Entry(float(bounds[index]), own, kept, int(index)))
    entries.sort(key=lambda e: e.bound_s)
    found, simulated = _simulate(entries, top)
    return Exhausted(
        enumerated=total * 16, feasible=feasible, simulated=simulated, candidates=tuple(found)
    )


def _switched(job: Job, **switches: bool) -> Job:
    """The job with some switches of its system set."""
    profile = msgspec.structs.replace(job.profile, **switches)
    return msgspec.structs.replace(job, profile=profile)


def full_space(job: Job) -> Space:
    """No axis held: all ZeRO stages, both kinds of sequence handling, every micro-batch."""
    micro = tuple(d for d in divisors(job.global_batch) if d <= 64)
    return Space(
        micro_batch=micro,
        zero=(0, 1, 2, 3),
        sequence_parallel=(True, False),
        recompute=RECOMPUTE,
        schedule=job.profile.schedules,
    )


def _parts(grid: Grid) -> list[Grid]:
    size = len(grid.tp)
    return [grid.take(slice(a, min(a + _SLICE, size))) for a in range(0, max(size, 1), _SLICE)]


def _feasible(job: Job, grid: Grid) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Layouts that break no rule; memory is computed only where the cheap rules hold."""
    alive = ~broken_rules(job, grid)
    inside = np.flatnonzero(alive)
    alive[inside] = fits(job, peak_memory(job, grid.take(inside)))
    return alive


def _bounds(job: Job, grid: Grid) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.broadcast_to(price(job, grid).bound_s(job, grid), grid.tp.shape)


def _simulate(entries: list[_Entry], top: int) -> tuple[list[Candidate], int]:
    """The best by simulation, lowest bound first, until no bound can win."""
    best: list[tuple[float, _Entry, Price, float]] = []
    simulated = 0
    for entry in entries:
        if len(best) >= top and entry.bound_s >= best[top - 1][0]:
            break
        layout = entry.grid.layout(entry.place)
        one = entry.grid.take(slice(entry.place, entry.place + 1))
        prices = price(entry.job, one)
        scalar = Price(*(float(np.ravel(column)[0]) for column in prices))
        pipeline_s = pipeline_of(entry.job, layout, scalar)
        simulated += 1
        best.append((pipeline_s + scalar.tail_s + scalar.tail_dp_s, entry, scalar, pipeline_s))
        best.sort(key=lambda item: item[0])
    found = []
    for _, e, prices, pipeline_s in best[:top]:
        layout = e.grid.layout(e.place)
        step = step_of(e.job, layout, prices, pipeline_s)
        found.append(candidate_of(e.job, layout, step))
    return found, simulated
