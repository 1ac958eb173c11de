"""Adapt the model to a machine from runs on it: a table, or folders that `msctl train` left.

Few unknowns, each with a prior: speed of GEMMs, memory and links, and the overheads of the system
per micro-batch and per step. Runs are left out in turn to say how well unseen ones are predicted.
The cluster file that is written carries that error in its first lines.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
from engine.plan.setup import Job, PlanLayout
from engine.plan.validate import cases_of, predict
from engine.spec.base import Noun, doc
from engine.spec.cluster import ClusterSpec, DeviceSpec, LinkSpec
from engine.spec.load import dump_cluster, load_recipe
from engine.spec.recipe import Recipe

_WARM = 2
_LARGEST_LINE = 1 << 16
_NOMINAL_CORE = 50e9
"""FLOP/s of one CPU core before calibration; the fit replaces it."""


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


class _Scale(Noun, frozen=True, kw_only=True):
    """Factors on a cluster's own numbers."""

    gemm: float = 1.0
    memory: float = 1.0
    links: float = 1.0
    latency: float = 1.0


SCALES = (("gemm", 1.5), ("memory", 1.0), ("links", 1.0), ("latency", 1.0))
OVERHEADS = (("intercept_s", 1.5), ("slope", 0.1))


def adapt(source: Path, out: Path | None = None) -> Adapted:
    """Fit to a CSV of runs, a run's folder, or a folder of runs; write a cluster file if asked."""
    constants = fitted()
    cases = measured_cases(source, constants)
    if len(cases) < 2:
        raise RecipeError(
            f"{source}: {len(cases)} usable runs", remedy="give at least two runs to calibrate on"
        )
    before = _error(cases, None)
    values = _fit(cases)
    left_out = [_predict(case, _fit([c for c in cases if c is not case])) for case in cases]
    held = np.array([np.log(s / c.measured_s) for s, c in zip(left_out, cases, strict=True)])
    fixed = _scaled(cases[0], values).job.cluster
    result = Adapted(
        rows=len(cases),
        constants=_constants(cases[0], values),
        error_before=before,
        error_after=_error(cases, values),
        error_left_out=float(np.mean(np.abs(np.exp(held) - 1))),
        log_error=float(np.sqrt(np.mean(held**2))),
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


def measured_cases(source: Path, constants: Fitted) -> list[Case]:
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
    return [case for case in (case_of_run(run, constants) for run in runs) if case is not None]


def case_of_run(folder: Path, constants: Fitted) -> Case | None:
    """A run of `msctl train` as a case; None if it has too few steps to tell."""
    recipe = load_recipe(folder / "recipe.toml")
    seconds = step_seconds(folder / "metrics.jsonl")
    if len(seconds) <= _WARM:
        return None
    job = job_of(recipe, constants)
    layout = PlanLayout(
        tp=recipe.layout.tp, pp=recipe.layout.pp, vpp=recipe.layout.vpp, dp=recipe.layout.dp,
        sequence_parallel=recipe.layout.sequence_parallel, zero=recipe.layout.zero,
        micro_batch=recipe.batch.micro_batch, recompute=recipe.train.recompute,
    )  # fmt: skip
    return Case(
        id=folder.name, group="runs", source=str(folder), hardware=job.cluster.device.name,
        job=job, layouts=(layout,), measured_s=float(np.median(seconds[_WARM:])),
        measured_bytes=0.0, fits=-1, layers_only=False, assumptions=(),
    )  # fmt: skip


def job_of(recipe: Recipe, constants: Fitted) -> Job:
    """The job of a recipe that ran here: the recipe's cluster, or this machine's cores."""
    world = recipe.layout.world_size
    cluster = recipe.cluster or this_machine(world, cores=len(os.sched_getaffinity(0)))
    profile = msgspec.structs.replace(
        constants.profiles["msctl"], overlap_tp=recipe.overlap.tp, overlap_pp=recipe.overlap.pp,
        overlap_dp=recipe.overlap.dp, intercept_s=0.01,
    )  # fmt: skip
    return Job(
        model=recipe.model, cluster=cluster, global_batch=recipe.batch.global_batch,
        precision=recipe.train.precision, attention="fused-softmax", profile=profile,
        physics=constants.physics,
    )  # fmt: skip


def this_machine(world: int, *, cores: int) -> ClusterSpec:
    """`world` ranks that share this machine's cores: each has its share of them."""
    share = min(1.0, cores / world)
    rate = _NOMINAL_CORE * share
    device = DeviceSpec(
        name="cpu", peak_flops_per_s={p: rate for p in ("fp64", "fp32", "bf16")},
        memory_bytes=1 << 34, memory_bytes_per_s=10e9 * share, sustained=0.8,
    )  # fmt: skip
    link = LinkSpec(bytes_per_s=2e9 * share, latency_s=50e-6 / share)
    return ClusterSpec(
        name="this-machine", nodes=1, gpus_per_node=world, device=device, intra=link, inter=link
    )


def step_seconds(path: Path) -> list[float]:
    """`step_s` of every line of a metrics file."""
    found = []
    try:
        with path.open("rb") as file:
            while line := file.readline(_LARGEST_LINE):
                row = msgspec.json.decode(line, type=dict[str, object])
                value = row.get("step_s")
                if isinstance(value, int | float) and value > 0:
                    found.append(float(value))
    except (OSError, msgspec.MsgspecError) as error:
        raise RecipeError(
            f"{path}: {error}", remedy="give the folder of a run that has metrics.jsonl"
        ) from None
    return found


def _knobs(system: str) -> list[Knob]:
    scales = [Knob("scale", "", field, spread) for field, spread in SCALES]
    return scales + [Knob("profiles", system, field, spread) for field, spread in OVERHEADS]


def _scaled(case: Case, values: Sequence[float] | None) -> Case:
    """The case with the unknowns put in."""
    if values is None:
        return case
    scale = _Scale(**{name: v for (name, _), v in zip(SCALES, values, strict=False)})
    overheads = {name: v for (name, _), v in zip(OVERHEADS, values[len(SCALES) :], strict=True)}
    cluster, replace = case.job.cluster, msgspec.structs.replace
    device = replace(
        cluster.device, sustained=min(1.0, cluster.device.sustained * scale.gemm),
        memory_bytes_per_s=cluster.device.memory_bytes_per_s * scale.memory,
        peak_flops_per_s=_peaks(cluster.device, scale.gemm),
    )  # fmt: skip
    links = {
        name: LinkSpec(
            bytes_per_s=link.bytes_per_s * scale.links, latency_s=link.latency_s * scale.latency
        )
        for name, link in (("intra", cluster.intra), ("inter", cluster.inter))
    }
    job = replace(
        case.job, cluster=replace(cluster, device=device, **links),
        profile=replace(case.job.profile, **overheads),
    )  # fmt: skip
    return case._replace(job=job)


def _peaks(device: DeviceSpec, gemm: float) -> dict[str, float]:
    """A CPU's nominal peak is itself unknown; an accelerator's is its data sheet's."""
    if device.name != "cpu" or device.sustained * gemm <= 1.0:
        return device.peak_flops_per_s
    over = device.sustained * gemm
    return {name: rate * over for name, rate in device.peak_flops_per_s.items()}


def _start(case: Case) -> list[float]:
    return [1.0] * len(SCALES) + [
        max(1e-4, float(getattr(case.job.profile, name))) for name, _ in OVERHEADS
    ]


def _fit(cases: Sequence[Case]) -> list[float]:
    """Gauss-Newton on the closed form, corrected by the simulation, as in `calibrate`."""
    knobs = _knobs(cases[0].job.profile.name)
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
        points.append(Point(case, layout, seconds / closed_s(moved, layout), 1.0))
    return points


def _errors(
    points: Sequence[Point],
    knobs: Sequence[Knob],
    at: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    values = [backward(knob, x) for knob, x in zip(knobs, at, strict=True)]
    return np.array(
        [
            np.log(closed_s(_scaled(p.case, values), p.layout) * p.ratio / p.case.measured_s)
            for p in points
        ]
    )


def _predict(case: Case, values: Sequence[float] | None) -> float:
    return predict(_scaled(case, values))[0]


def _error(cases: Sequence[Case], values: Sequence[float] | None) -> float:
    return float(np.mean([abs(_predict(c, values) / c.measured_s - 1) for c in cases]))


def _constants(case: Case, values: Sequence[float]) -> tuple[Constant, ...]:
    names = ["GEMM speed", "memory speed", "link speed", "link latency"]
    names += ["seconds per step", "factor per micro-batch"]
    return tuple(
        Constant(name=name, before=old, after=new)
        for name, old, new in zip(names, _start(case), values, strict=True)
    )
