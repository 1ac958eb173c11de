"""From the words of a command line or recipe to a job and a search space; and the plan itself.

Unknown inputs are filled with the defaults below and each is named as an assumption in the report.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engine.errors import RecipeError
from engine.plan.exhaust import Exhausted, exhaust, full_space
from engine.plan.explain import budget, sensitivities, waterfall
from engine.plan.goodput import Failures, Goodput, goodput
from engine.plan.models import Source, load_model
from engine.plan.planned import obstacle
from engine.plan.profiles import fitted, profile
from engine.plan.report import Candidate, PlanReport
from engine.plan.runs import on_machine
from engine.plan.search import Space, search
from engine.plan.sets import held, parse_sets
from engine.plan.setup import Job
from engine.spec.check_run import MOST_DEVICES
from engine.spec.cluster import ClusterSpec
from engine.spec.load import load_cluster
from engine.spec.model import ModelSpec
from engine.spec.presets import CLUSTERS
from engine.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked; 0 or an empty string means not given."""

    model: str
    gpus: int = 0
    cluster: str = ""
    batch: int = 0
    seq: int = 0
    precision: str = ""
    system: str = "msctl"
    sets: Sequence[str] = ()
    top: int = 8
    explain: bool = False
    tokens: float = 0.0
    price_per_gpu_hour: float = 2.0


class Prepared(NamedTuple):
    """A job, its devices, what may vary, what was assumed, and the recipe it comes from."""

    job: Job
    gpus: int
    space: Space
    assumptions: tuple[str, ...]
    recipe: Recipe | None = None


def make_plan(request: Request) -> PlanReport:
    """Search and report."""
    ready = prepare(request)
    found = search(ready.job, ready.gpus, ready.space, top=request.top)
    best = found.candidates[0] if found.candidates else None
    step = found.step
    return PlanReport(
        model=ready.job.model,
        params=float(ready.job.model.params),
        cluster=ready.job.cluster,
        gpus=ready.gpus,
        global_batch=ready.job.global_batch,
        precision=ready.job.precision,
        system=ready.job.profile.name,
        assumptions=ready.assumptions,
        candidates=marked(ready, found.candidates),
        refusals=found.refusals,
        considered=found.considered,
        simulated=found.simulated,
        waterfall=waterfall(ready.job, best.layout, step) if best and step else (),
        sensitivity=sensitivities(ready.job, best) if best and request.explain else (),
        budget=budget(best, request.tokens, request.price_per_gpu_hour)
        if best and request.tokens
        else None,
    )


def marked(ready: Prepared, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The candidates with what keeps `msctl train` from running each."""
    return tuple(
        msgspec.structs.replace(one, obstacle=obstacle(ready.job, one.layout, ready.recipe))
        for one in candidates
    )


def prepare(request: Request, *, every: bool = False) -> Prepared:
    """Resolve every input; RecipeError says which one is wrong. `every`: no axis is left out."""
    source = load_model(request.model)
    notes = list(source.assumptions)
    sets = parse_sets(request.sets)
    model = source.model
    changes = {
        key.split(".", 1)[1]: value for key, value in sets.items() if key.startswith("model.")
    }
    if request.seq:
        changes["seq"] = str(request.seq)
    if changes:
        model = _changed(model, changes)
    gpus = _gpus(request, source)
    cluster = _cluster(request, source, notes)
    if not gpus:
        gpus = cluster.world_size
        notes.append(f"{gpus} devices (all of cluster {cluster.name})")
    nodes = math.ceil(gpus / cluster.gpus_per_node)
    cluster = msgspec.structs.replace(cluster, nodes=nodes)
    precision = _precision(request, source, cluster, notes)
    batch = _batch(request, source, model.seq, gpus, notes)
    system = profile(request.system)
    generation = cluster.device.peak_flops_per_s.get("bf16", 0.0)
    attention = "cudnn" if generation > 500e12 and request.system in ("nemo", "msctl") else "flash2"
    job = Job(
        model=model, experts=source.experts, cluster=cluster, global_batch=batch,
        precision=precision, attention=attention, profile=system,  # type: ignore[arg-type]
        physics=fitted().physics, speed=fitted().speed_of(cluster.device.name, precision),
    )  # fmt: skip
    job = on_machine(job)
    space = held(full_space(job) if every else _space_of(job, source), sets, job)
    recipe = source.recipe
    if recipe is not None and request.cluster:
        recipe = msgspec.structs.replace(recipe, cluster=cluster)
    return Prepared(job, gpus, space, tuple(notes), recipe)


def _cluster(request: Request, source: Source, notes: list[str]) -> ClusterSpec:
    if request.cluster:
        return load_cluster(request.cluster)
    if source.recipe is not None and source.recipe.cluster is not None:
        return source.recipe.cluster
    notes.append("cluster a100-nvl8: eight A100-80GB a node, 300 GB/s inside, 25 GB/s per GPU out")
    return CLUSTERS["a100-nvl8"]


def _precision(request: Request, source: Source, cluster: ClusterSpec, notes: list[str]) -> str:
    """As asked for, else as the recipe trains, else bf16."""
    wanted, said = request.precision, f"--precision {request.precision}"
    if not wanted and source.recipe is not None:
        wanted = source.recipe.train.precision
        said = f"train.precision = {wanted} of the recipe"
    elif not wanted:
        wanted = "bf16"
        notes.append("precision bf16")
    if wanted not in cluster.device.peak_flops_per_s:
        raise RecipeError(
            f"{said}: {cluster.device.name} has no peak for it",
            remedy=f"use --precision with one of {', '.join(cluster.device.peak_flops_per_s)}",
        )
    return wanted


def _batch(request: Request, source: Source, seq: int, gpus: int, notes: list[str]) -> int:
    if request.batch:
        return request.batch
    if source.recipe is not None:
        return source.recipe.batch.global_batch
    tokens = 12.6e6 if gpus >= 3072 else 4.2e6 if gpus >= 512 else 1.6e6
    batch = max(1, round(tokens / seq))
    batch = max(1, batch // gpus) * gpus if batch >= gpus else 2 ** round(math.log2(batch))
    batch = _round_batch(batch, gpus)
    notes.append(f"global batch of {batch} sequences ({batch * seq / 1e6:.1f} M tokens)")
    return batch


def _round_batch(batch: int, gpus: int) -> int:
    """A batch with many divisors in common with the cluster."""
    target = gpus
    while target > batch and target % 2 == 0:
        target //= 2
    return max(1, round(batch / target)) * target


def _gpus(request: Request, source: Source) -> int:
    """Devices as asked for or as the recipe's layout has them; 0 = neither says."""
    if request.gpus > MOST_DEVICES:
        raise RecipeError(
            f"--gpus {request.gpus} is beyond the limit of {MOST_DEVICES} devices",
            remedy=f"give --gpus of at most {MOST_DEVICES}",
        )
    return request.gpus or (source.recipe.layout.world_size if source.recipe is not None else 0)


def _changed(model: ModelSpec, changes: dict[str, str]) -> ModelSpec:
    """The model with some keys set; derived sizes are derived anew where their source changed."""
    fields = msgspec.to_builtins(model)
    if "hidden" in changes or "heads" in changes:
        fields["head_dim"] = 0
    if "hidden" in changes:
        fields["ffn"] = 0
    if "heads" in changes and model.kv_heads == model.heads:
        fields["kv_heads"] = 0
    try:
        return msgspec.convert(fields | changes, ModelSpec, strict=False)
    except msgspec.ValidationError as error:
        raise RecipeError(f"--set model: {error}", remedy="give a value of that type") from None


def _space_of(job: Job, source: Source) -> Space:
    """What an ordinary search varies; the rest is as the recipe has it, if there is one."""
    space = Space(schedule=job.profile.schedules, recompute=job.recomputes)
    if source.recipe is None:
        return space
    layout = source.recipe.layout
    return space._replace(zero=(layout.zero,), sequence_parallel=(layout.sequence_parallel,))


def make_exhaustive(request: Request) -> Exhausted:
    """Every combination of layout and switches that `--set` leaves."""
    ready = prepare(request, every=True)
    found = exhaust(ready.job, ready.gpus, ready.space, top=request.top)
    return msgspec.structs.replace(found, candidates=marked(ready, found.candidates))


def make_goodput(request: Request) -> Goodput:
    """Effective training time of the cluster that was asked for."""
    sets = parse_sets(request.sets)
    changes = {k.split(".", 1)[1]: v for k, v in sets.items() if k.startswith("goodput.")}
    try:
        failures = msgspec.convert(changes, Failures, strict=False)
    except msgspec.ValidationError as error:
        raise RecipeError(f"--set goodput: {error}", remedy="give a number") from None
    return goodput(prepare(request).job.cluster.nodes, failures)
