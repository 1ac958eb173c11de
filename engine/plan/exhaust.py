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
from engine.plan.setup import RECOMPUTE, Grid, Job, PlanLayout
from engine.plan.simulate import pipeline_of, step_of
from engine.spec.base import Noun, doc

_SLICE = 1 << 15
"""Layouts priced at once: arrays that stay in a core's cache."""


_SWITCHES = ("overlap_tp", "overlap_pp", "overlap_dp", "fused")
_KEPT = 8
"""Layouts kept of each setting of the switches for one that is shown: so many may be equal."""


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


def exhaust(job: Job, gpus: int, space: Space | None = None, *, top: int = 10) -> Exhausted:
    """Enumerate, refuse, bound and simulate everything, or all of a smaller space."""
    grid = enumerate_grid(job, gpus, space or full_space(job))
    total = len(grid.tp)
    entries: list[_Entry] = []
    feasible = 0
    for fused in (False, True):  # the only switch that memory depends on
        one = switched(job, fused=fused)
        alive = np.concatenate([_feasible(one, part) for part in _parts(grid)])
        kept = grid.take(alive)
        for tp, pp, dp in product((False, True), repeat=3):
            own = switched(one, overlap_tp=tp, overlap_pp=pp, overlap_dp=dp)
            bounds = np.concatenate([_bounds(own, part) for part in _parts(kept)])
            feasible += len(bounds)
            for index in np.argsort(bounds, kind="stable")[: _KEPT * top]:
                entries.append(_Entry(float(bounds[index]), own, kept, int(index)))
    entries.sort(key=lambda e: (e.bound_s, len(_changed(job, e.job))))
    found, simulated = _simulate(job, entries, top)
    return Exhausted(
        enumerated=total * 16, feasible=feasible, simulated=simulated, candidates=tuple(found)
    )


def switched(job: Job, **switches: bool) -> Job:
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


def _simulate(job: Job, entries: list[_Entry], top: int) -> tuple[list[Candidate], int]:
    """The best by simulation, lowest bound first, until no bound can win.

    A layout counts once, with the switches that serve it best: its own system's if others do
    nothing for it.
    """
    best: dict[PlanLayout, tuple[float, int, _Entry, Price, float]] = {}
    simulated, last = 0, np.inf
    for entry in entries:
        if entry.bound_s >= last:
            break
        layout = _plain(entry.grid.layout(entry.place))
        one = entry.grid.take(slice(entry.place, entry.place + 1))
        prices = price(entry.job, one)
        scalar = Price(*(float(np.ravel(column)[0]) for column in prices))
        pipeline_s = pipeline_of(entry.job, layout, scalar)
        simulated += 1
        seconds = pipeline_s + scalar.tail_s + scalar.tail_dp_s
        made = (seconds, len(_changed(job, entry.job)), entry, scalar, pipeline_s)
        best[layout] = min(made, best.get(layout, made), key=lambda item: item[:2])
        times = sorted(item[0] for item in best.values())
        last = times[top - 1] if len(times) >= top else np.inf
    found = []
    for layout, (_, _, e, prices, pipeline_s) in sorted(best.items(), key=lambda i: i[1][:2])[:top]:
        step = step_of(e.job, layout, prices, pipeline_s)
        candidate = candidate_of(e.job, layout, step)
        found.append(msgspec.structs.replace(candidate, switches=_changed(job, e.job)))
    return found, simulated


def _plain(layout: PlanLayout) -> PlanLayout:
    """The layout without choices that change nothing in it: what there is nothing to split by."""
    return msgspec.structs.replace(
        layout,
        sequence_parallel=layout.sequence_parallel or layout.tp == 1,
        zero=layout.zero if layout.dp * layout.cp > 1 else 1,
    )


def _changed(own: Job, job: Job) -> dict[str, bool]:
    """The switches that a job sets otherwise than its system does."""
    values = {name: getattr(job.profile, name) for name in _SWITCHES}
    return {name: on for name, on in values.items() if on != getattr(own.profile, name)}
