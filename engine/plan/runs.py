"""Runs that `msctl train` left on this machine, as jobs to predict.

A run folder holds the resolved recipe and one line of metrics a step. Where the recipe names no
cluster, the ranks are taken to share this machine's cores.
"""

import os
from pathlib import Path

import msgspec
import numpy as np

from engine.errors import RecipeError
from engine.plan.profiles import Fitted, Physics
from engine.plan.rows import Case
from engine.plan.setup import Job, PlanLayout
from engine.spec.cluster import ClusterSpec, DeviceSpec, LinkSpec
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe

_WARM = 2
_LARGEST_LINE = 1 << 16
_NOMINAL_CORE = 50e9
"""FLOP/s of one CPU core before calibration; the fit replaces it."""


def case_of_run(folder: Path, constants: Fitted, cluster: ClusterSpec | None = None) -> Case | None:
    """A run of `msctl train` as a case; None if it has too few steps to tell.

    `cluster` is what it ran on, if neither the recipe's nor this machine. The time of a step is the
    lower quartile: what disturbs a step only ever makes it longer.
    """
    recipe = load_recipe(folder / "recipe.toml")
    seconds = step_seconds(folder / "metrics.jsonl")
    if len(seconds) <= _WARM:
        return None
    job = job_of(recipe, constants, cluster)
    layout = PlanLayout(
        tp=recipe.layout.tp, pp=recipe.layout.pp, vpp=recipe.layout.vpp, dp=recipe.layout.dp,
        sequence_parallel=recipe.layout.sequence_parallel, zero=recipe.layout.zero,
        micro_batch=recipe.batch.micro_batch, recompute=recipe.train.recompute,
    )  # fmt: skip
    return Case(
        id=folder.name, group="runs", source=str(folder), hardware=job.cluster.device.name,
        job=job, layouts=(layout,), measured_s=float(np.quantile(seconds[_WARM:], 0.25)),
        measured_bytes=0.0, fits=-1, layers_only=False, assumptions=(),
    )  # fmt: skip


def job_of(recipe: Recipe, constants: Fitted, cluster: ClusterSpec | None = None) -> Job:
    """The job of a recipe that ran here: a given cluster, the recipe's, or this machine's cores."""
    if cluster is None:
        cores = len(os.sched_getaffinity(0))
        cluster = recipe.cluster or this_machine(recipe.layout.world_size, cores=cores)
    profile = msgspec.structs.replace(
        constants.profiles["msctl"], overlap_tp=recipe.overlap.tp, overlap_pp=recipe.overlap.pp,
        overlap_dp=recipe.overlap.dp,
    )  # fmt: skip
    job = Job(
        model=recipe.model, cluster=cluster, global_batch=recipe.batch.global_batch,
        precision=recipe.train.precision, attention="flash2", profile=profile,
        physics=constants.physics,
    )  # fmt: skip
    return on_machine(job)


def on_machine(job: Job) -> Job:
    """The job with what its cluster says of cores and of measured overheads."""
    if job.cluster.cores:
        profile = msgspec.structs.replace(
            job.profile, overlap_tp=False, overlap_dp=False, async_backward=0.0, slope=1.0,
            host_serial=1.0, intercept_s=0.005,
        )  # fmt: skip
        job = msgspec.structs.replace(
            job, profile=profile, physics=on_cores(job.physics), attention="fused-softmax",
            speed=1.0,
        )  # fmt: skip
    return with_host(job)


def on_cores(physics: Physics) -> Physics:
    """The constants for ranks that are processes: no tiles, no waves, copies at full rate."""
    return msgspec.structs.replace(
        physics, k_fill=16.0, wave_share=0.0, launch_s=20e-6, collective_host_s=1e-3, intra=1.0,
        inter=1.0, half_intra_bytes=1.0, half_inter_bytes=1.0, interference=0.0, spread=0.0,
    )  # fmt: skip


def with_host(job: Job) -> Job:
    """The job with the overheads that its cluster file carries."""
    host, profile, physics = job.cluster.host, job.profile, job.physics
    profile = msgspec.structs.replace(
        profile, intercept_s=host.step_s or profile.intercept_s, slope=host.slope or profile.slope,
        log_error=host.log_error or profile.log_error,
    )  # fmt: skip
    physics = msgspec.structs.replace(
        physics, launch_s=host.launch_s or physics.launch_s,
        collective_host_s=host.collective_s or physics.collective_host_s,
    )  # fmt: skip
    return msgspec.structs.replace(job, profile=profile, physics=physics)


def this_machine(world: int, *, cores: int) -> ClusterSpec:
    """`world` ranks that share this machine's cores."""
    device = DeviceSpec(
        name="cpu", peak_flops_per_s={p: _NOMINAL_CORE for p in ("fp64", "fp32", "bf16")},
        memory_bytes=1 << 34, memory_bytes_per_s=10e9, sustained=0.8,
    )  # fmt: skip
    link = LinkSpec(bytes_per_s=1e9, latency_s=1e-3)
    return ClusterSpec(
        name="this-machine", nodes=1, gpus_per_node=world, device=device, intra=link, inter=link,
        cores=min(cores, world),
    )  # fmt: skip


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
