"""Adapt the model to a machine from runs on it: a table, or folders that `msctl train` left.

Few unknowns, each with a prior: speed of GEMMs, memory and links, and the overheads of the system
per micro-batch and per step. Runs are left out in turn to say how well unseen ones are predicted.
The cluster file that is written carries that error in its first lines.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from engine.errors import RecipeError
from engine.plan.calibrate import (
    Knob,
    Point,
    backward,
    closed_s,
    forward,
    loss,
    solve,
)  # fmt: skip
from engine.plan.draw import write
from engine.plan.profiles import Fitted, fitted
from engine.plan.rows import Case, read_rows
from engine.plan.runs import case_of_run, with_host
from engine.plan.validate import cases_of, predict
from engine.spec.base import Noun, doc
from engine.spec.cluster import ClusterSpec, DeviceSpec, HostSpec
from engine.spec.load import dump_cluster


class Constant(Noun, frozen=True, kw_only=True):
    """One fitted value."""

    name: str
    before: float
    after: float


class Adapted(Noun, frozen=True, kw_only=True):
    """The result of a calibration."""

    rows: int
    constants: tuple[Constant, ...]
    error_before: Annotated[float, doc("mean absolute error with the shipped constants, 0..1")]
    error_after: Annotated[float, doc("with the fitted ones")]
    error_left_out: Annotated[float, doc("of runs left out of the fit in turn")]
    log_error: Annotated[float, doc("spread for intervals: P10, P90 = step * exp(-+1.28 spread)")]
    cluster: ClusterSpec
    path: str = ""


class _Unknown(NamedTuple):
    """One thing to fit: what it is called, where it starts, the spread of its prior."""

    name: str
    start: float
    spread: float


SCALES = {
    "gemm": _Unknown("GEMM speed", 1.0, 1.5),
    "memory": _Unknown("memory speed", 1.0, 0.7),
    "links": _Unknown("link speed", 1.0, 1.0),
    "latency": _Unknown("link latency", 1.0, 1.0),
}
"""Factors on a cluster's own numbers; then the system's overheads."""


def adapt(source: Path, out: Path | None = None, cluster: ClusterSpec | None = None) -> Adapted:
    """Fit to a CSV of runs, a run's folder, or a folder of runs; write a cluster file if asked.

    Runs of `msctl train` start from `cluster`, where one is given.
    """
    constants = fitted()
    cases = measured_cases(source, constants, cluster)
    if len(cases) < 2:
        raise RecipeError(
            f"{source}: {len(cases)} usable runs", remedy="give at least two runs to calibrate on"
        )
    before = _error(cases, None)
    values = _fit(cases)
    left_out = [_predict(case, _fit([c for c in cases if c is not case])) for case in cases]
    held = np.array([np.log(s / c.measured_s) for s, c in zip(left_out, cases, strict=True)])
    spread = float(np.sqrt(np.mean(held**2)))
    fixed = _finished(cases[0], values, spread)
    result = Adapted(
        rows=len(cases),
        constants=_constants(cases[0], values),
        error_before=before,
        error_after=_error(cases, values),
        error_left_out=float(np.mean(np.abs(np.exp(held) - 1))),
        log_error=spread,
        cluster=fixed,
        path=str(out or ""),
    )
    if out is not None:
        note = (
            f"# calibrated on {result.rows} runs; mean error of runs left out "
            f"{100 * result.error_left_out:.1f} %, spread of the log error {result.log_error:.3f}\n"
        )
        write(out, note + dump_cluster(fixed))
    return result


def measured_cases(
    source: Path, constants: Fitted, cluster: ClusterSpec | None = None
) -> list[Case]:
    """Runs with a time, from a table or from run folders."""
    if source.is_file():
        found = cases_of(read_rows(source), constants)[0]
        return [case for case in found if case.measured_s > 0]
    folders = [source] if (source / "recipe.toml").is_file() else sorted(source.glob("*/"))
    runs = [f for f in folders if (f / "recipe.toml").is_file()]
    if not runs:
        raise RecipeError(
            f"{source}: neither a table nor a folder with runs",
            remedy="give a CSV, a run folder with recipe.toml and metrics.jsonl, or their parent",
        )
    tried = [case_of_run(run, constants, cluster) for run in runs]
    return [case for case in tried if case is not None]


def _unknowns(case: Case) -> dict[str, _Unknown]:
    """What is fitted, by kind of machine: factors on the cluster, seconds of the host."""
    profile, physics = case.job.profile, case.job.physics
    step = _Unknown("seconds per step", max(1e-4, profile.intercept_s), 1.5)
    if case.job.cluster.cores:
        # copies within a machine are known better than what waking a process costs on a busy one
        return SCALES | {
            "memory": SCALES["memory"]._replace(spread=0.2),
            "links": SCALES["links"]._replace(spread=0.3),
            "step_s": step,
            "launch_s": _Unknown("seconds per operator", physics.launch_s, 0.5),
            "collective_s": _Unknown("seconds per collective", physics.collective_host_s, 1.0),
        }
    slope = _Unknown("factor per micro-batch", profile.slope, 0.1)
    return SCALES | {"step_s": step, "slope": slope}


def _knobs(case: Case) -> list[Knob]:
    return [Knob("scale", "", one.name, one.spread) for one in _unknowns(case).values()]


def _scaled(case: Case, values: Sequence[float] | None) -> Case:
    """The case with the unknowns put in."""
    if values is None:
        return case
    put = dict(zip(_unknowns(case), values, strict=True))
    gemm, memory, links, latency = (put.pop(name) for name in SCALES)
    cluster, replace = case.job.cluster, msgspec.structs.replace
    device = replace(
        cluster.device, sustained=min(1.0, cluster.device.sustained * gemm),
        memory_bytes_per_s=cluster.device.memory_bytes_per_s * memory,
        peak_flops_per_s=_peaks(cluster.device, gemm),
    )  # fmt: skip
    wires = {
        name: replace(
            link, bytes_per_s=link.bytes_per_s * links, latency_s=link.latency_s * latency
        )
        for name, link in (("intra", cluster.intra), ("inter", cluster.inter))
    }
    host = HostSpec(log_error=case.job.profile.log_error, **put)
    cluster = replace(cluster, device=device, host=host, **wires)
    return case._replace(job=with_host(replace(case.job, cluster=cluster)))


def _finished(case: Case, values: Sequence[float], spread: float) -> ClusterSpec:
    """The calibrated cluster, with the error bar that plans on it get."""
    cluster = _scaled(case, values).job.cluster
    host = msgspec.structs.replace(cluster.host, log_error=spread)
    return msgspec.structs.replace(cluster, host=host)


def _peaks(device: DeviceSpec, gemm: float) -> dict[str, float]:
    """A CPU's nominal peak is itself unknown; an accelerator's is its data sheet's."""
    if device.name != "cpu" or device.sustained * gemm <= 1.0:
        return device.peak_flops_per_s
    over = device.sustained * gemm
    return {name: rate * over for name, rate in device.peak_flops_per_s.items()}


def _start(case: Case) -> list[float]:
    return [one.start for one in _unknowns(case).values()]


def _fit(cases: Sequence[Case]) -> list[float]:
    """Gauss-Newton on the closed form, corrected by the simulation, as in `calibrate`."""
    knobs = _knobs(cases[0])
    start = _start(cases[0])
    prior = np.array([forward(k, v) for k, v in zip(knobs, start, strict=True)])
    here = prior.copy()
    weights = np.ones(len(cases)) / len(cases)
    for _ in range(3):
        points = _points(cases, [backward(k, x) for k, x in zip(knobs, here, strict=True)])
        for _ in range(6):
            base = _errors(points, knobs, here)
            table = np.stack(
                [
                    (_errors(points, knobs, here + 0.02 * e) - base) / 0.02
                    for e in np.eye(len(here))
                ],
                axis=1,
            )
            move = solve(table, base, weights, prior - here, knobs)
            options = [here, here + move, here + 0.5 * move, here + 0.2 * move]
            here = min(
                options,
                key=lambda x: loss(_errors(points, knobs, x), weights, prior - x, knobs),
            )
    return [backward(k, x) for k, x in zip(knobs, here, strict=True)]


def _points(cases: Sequence[Case], values: Sequence[float]) -> list[Point]:
    points = []
    for case in cases:
        moved = _scaled(case, values)
        seconds, layout, _ = predict(moved)
        points.append(Point(case, layout, seconds / float(closed_s(moved, layout)), 1.0))
    return points


def _errors(
    points: Sequence[Point],
    knobs: Sequence[Knob],
    at: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    values = [backward(knob, x) for knob, x in zip(knobs, at, strict=True)]
    return np.array([np.log(_seconds(p, values) / p.case.measured_s) for p in points])


def _seconds(point: Point, values: Sequence[float]) -> float:
    """A closed form where there is one; shared cores are simulated."""
    moved = _scaled(point.case, values)
    if moved.job.cluster.cores:
        return predict(moved)[0]
    return float(closed_s(moved, point.layout)) * point.ratio


def _predict(case: Case, values: Sequence[float] | None) -> float:
    return predict(_scaled(case, values))[0]


def _error(cases: Sequence[Case], values: Sequence[float] | None) -> float:
    return float(np.mean([abs(_predict(c, values) / c.measured_s - 1) for c in cases]))


def _constants(case: Case, values: Sequence[float]) -> tuple[Constant, ...]:
    return tuple(
        Constant(name=one.name, before=one.start, after=new)
        for one, new in zip(_unknowns(case).values(), values, strict=True)
    )
