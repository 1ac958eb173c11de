"""Fit constants of the cost model to measured runs.

The unknowns are few and have a meaning (`Knob`); each has a prior, so that what the data do not
determine stays where physics put it. The loss is the absolute log error, every source group with
equal voice; it is minimised by damped Gauss-Newton steps with iterated weights. Predictions inside
the fit use the closed form, corrected by the ratio of the simulated to the closed form at the last
refresh.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from engine.plan.paper import TABLE_3, ablation, paper_layout, published_s
from engine.plan.price import price
from engine.plan.profiles import Fitted, SystemProfile
from engine.plan.rows import Case
from engine.plan.setup import Num, PlanLayout, single
from engine.plan.validate import cases_of, predict
from engine.plan.words import Row

Vector = npt.NDArray[np.float64]
_FLOOR = 0.02
"""Errors below this count as if squared: an L1 loss with a smooth middle."""


class Knob(NamedTuple):
    """One unknown: where it is, its prior spread, and whether it is a share (0..1) or positive."""

    room: str
    name: str
    field: str
    spread: float
    is_share: bool = False


class Point(NamedTuple):
    """One measured run inside a fit: the layout decided on and simulated / closed form."""

    case: Case
    layout: PlanLayout
    ratio: float
    weight: float
    rung: int = -1
    """Row of the paper's Table 3 that the case is, whose profile is made of two; -1 for others."""


def get(constants: Fitted, knob: Knob) -> float:
    """The value of an unknown."""
    if knob.room == "devices":
        return constants.devices.get(knob.name, 1.0)
    owner = constants.physics if knob.room == "physics" else constants.profiles[knob.name]
    return float(getattr(owner, knob.field))


def put(constants: Fitted, knobs: Sequence[Knob], values: Sequence[Num]) -> Fitted:
    """The constants with unknowns replaced."""
    devices: dict[str, Num] = dict(constants.devices)
    physics: dict[str, Num] = {}
    profiles: dict[str, dict[str, Num]] = {}
    for knob, value in zip(knobs, values, strict=True):
        if knob.room == "devices":
            devices[knob.name] = value
        elif knob.room == "physics":
            physics[knob.field] = value
        else:
            profiles.setdefault(knob.name, {})[knob.field] = value
    changed = {
        name: msgspec.structs.replace(profile, **profiles.get(name, {}))
        for name, profile in constants.profiles.items()
    }
    return msgspec.structs.replace(
        constants, devices=devices, profiles=changed,
        physics=msgspec.structs.replace(constants.physics, **physics),
    )  # fmt: skip


def forward(knob: Knob, value: float) -> float:
    """To the unbounded coordinate in which the fit works."""
    if knob.is_share:
        value = min(max(value, 1e-3), 1 - 1e-3)
        return float(np.log(value / (1 - value)))
    return float(np.log(max(value, 1e-12)))


def backward(knob: Knob, coordinate: float) -> float:
    """The inverse of `forward`."""
    if knob.is_share:
        return float(1 / (1 + np.exp(-coordinate)))
    return float(np.exp(coordinate))


def points_of(rows: Sequence[Row], constants: Fitted) -> list[Point]:
    """Measured rows as points; groups weigh alike, whatever their number of rows."""
    cases = [c for c in cases_of(rows, constants)[0] if c.measured_s > 0]
    sizes = Counter(case.group for case in cases)
    return [_point(case, 1.0 / sizes[case.group] ** 0.75) for case in cases]


def _point(case: Case, weight: float) -> Point:
    seconds, layout, _ = predict(case)
    return Point(case, layout, seconds / float(closed_s(case, layout)), weight)


def closed_s(case: Case, layout: PlanLayout) -> Num:
    """The closed form of a step; an array where constants are arrays."""
    prices = price(case.job, single(layout))
    if case.layers_only:
        return prices.chunk_f + prices.chunk_b
    return prices.bound_s(case.job, single(layout))


def _moved(case: Case, constants: Fitted) -> Case:
    """The same case under other constants."""
    job = case.job
    base = constants.profiles[job.profile.name]
    profile: SystemProfile = msgspec.structs.replace(
        base, overlap_tp=job.profile.overlap_tp, fused=job.profile.fused
    )
    speed = constants.speed_of(job.cluster.device.name, job.precision)
    job = msgspec.structs.replace(job, profile=profile, physics=constants.physics, speed=speed)
    return case._replace(job=job)


def errors(points: Sequence[Point], constants: Fitted) -> Vector:
    """log(predicted / measured) of every point."""
    return np.array(list(_errors(points, constants)), dtype=np.float64)


def _errors(points: Sequence[Point], constants: Fitted) -> Iterator[Num]:
    rungs = ablation(constants) if any(p.rung >= 0 for p in points) else []
    for point in points:
        case = _moved(point.case, constants)
        if point.rung >= 0:
            case = point.case._replace(job=rungs[point.rung][0])
        yield np.log(closed_s(case, point.layout) * point.ratio / case.measured_s)


def jacobian(
    points: Sequence[Point], constants: Fitted, knobs: Sequence[Knob], base: Vector
) -> npt.NDArray[np.float64]:
    """Change of every error per unit of every coordinate, by forward differences.

    All differences of a point are taken at once: each unknown becomes an array that differs from
    its value in its own place only, and the cost model's formulas take arrays.
    """
    step = 0.02
    wide = []
    for place, knob in enumerate(knobs):
        values = np.full(len(knobs), get(constants, knob))
        values[place] = backward(knob, forward(knob, values[place]) + step)
        wide.append(values)
    moved = put(constants, knobs, wide)
    found = [np.broadcast_to(e, len(knobs)) for e in _errors(points, moved)]
    return (np.array(found).reshape(len(points), len(knobs)) - base[:, None]) / step


class Fit(NamedTuple):
    """The result of a fit, and how its errors move with the unknowns."""

    constants: Fitted
    jacobian: npt.NDArray[np.float64]
    errors: Vector


def fit(
    points: Sequence[Point], start: Fitted, knobs: Sequence[Knob], *, rounds: int = 6,
    prior: Fitted | None = None,
) -> Fit:  # fmt: skip
    """Constants that fit the points, from `start` on, held by the priors (`start` if not given)."""
    around = prior or start
    centre = np.array([forward(knob, get(around, knob)) for knob in knobs])
    constants = start
    weights = np.array([point.weight for point in points])
    base = errors(points, constants)
    table = jacobian(points, constants, knobs, base)
    for _ in range(rounds):
        here = np.array([forward(knob, get(constants, knob)) for knob in knobs])
        move = solve(table, base, weights, centre - here, knobs)
        constants, base = _line_search(points, constants, knobs, here, move, centre)
        table = jacobian(points, constants, knobs, base)
    return Fit(constants, table, base)


def solve(
    table: npt.NDArray[np.float64], base: Vector, weights: Vector, pull: Vector,
    knobs: Sequence[Knob],
) -> Vector:  # fmt: skip
    """One Gauss-Newton step with L1 weights and Gaussian priors."""
    robust = weights / np.maximum(np.abs(base), _FLOOR)
    stiffness = np.array([1.0 / knob.spread**2 for knob in knobs]) * _PRIOR
    left = table.T @ (robust[:, None] * table) + np.diag(stiffness)
    right = -table.T @ (robust * base) + stiffness * pull
    return np.clip(np.linalg.solve(left, right), -0.7, 0.7)


_PRIOR = 0.03
"""Weight of the priors against one group's summed error."""


def loss(base: Vector, weights: Vector, pull: Vector, knobs: Sequence[Knob]) -> float:
    """What a fit minimises."""
    data = np.where(np.abs(base) < _FLOOR, base**2 / (2 * _FLOOR) + _FLOOR / 2, np.abs(base))
    spread = np.array([knob.spread for knob in knobs])
    return float(np.sum(weights * data) + 0.5 * _PRIOR * np.sum((pull / spread) ** 2))


def _line_search(
    points: Sequence[Point], constants: Fitted, knobs: Sequence[Knob], here: Vector, move: Vector,
    prior: Vector,
) -> tuple[Fitted, Vector]:  # fmt: skip
    """The best of a few lengths of a step."""
    weights = np.array([point.weight for point in points])
    base = errors(points, constants)
    best = (loss(base, weights, prior - here, knobs), constants, base)
    for length in (1.0, 0.5, 0.25):
        to = here + length * move
        values = [backward(knob, x) for knob, x in zip(knobs, to, strict=True)]
        moved = put(constants, knobs, values)
        found = errors(points, moved)
        value = loss(found, weights, prior - to, knobs)
        if value < best[0]:
            return moved, found
    return best[1], best[2]


def refresh(points: Sequence[Point], constants: Fitted) -> list[Point]:
    """Simulate every point anew under other constants."""
    others = [_point(_moved(p.case, constants), p.weight) for p in points if p.rung < 0]
    return others + ladder_points(constants, [p.rung for p in points if p.rung >= 0])


def ladder_points(constants: Fitted, rungs: Sequence[int]) -> list[Point]:
    """Rows of the paper's Table 3 as points of one more group; times follow from its MFU."""
    found = []
    for rung in rungs:
        job, zero = ablation(constants)[rung]
        case = Case(
            id=f"table-3-{rung}", group="megascale-ablation", source="Table 3", hardware="A100",
            job=job, layouts=(paper_layout(256, zero=zero),), measured_bytes=0.0, fits=-1,
            measured_s=published_s(job, TABLE_3[rung][1]), layers_only=False, assumptions=(),
        )  # fmt: skip
        found.append(_point(case, LADDER_WEIGHT / len(rungs) ** 0.75)._replace(rung=rung))
    return found


LADDER_WEIGHT = 6.0
"""Voice of Table 3 among the groups: its rows say what each cause costs, totals do not."""
