"""A planned layout as a recipe of `msctl train`, the script that starts it, and what forbids it.

A recipe made of a recipe keeps everything of it but what was planned; one made of a bare model has
synthetic data. What is written here loads: it passes the checks of every recipe first.
"""

from typing import get_args

from msgspec.structs import replace

from engine.errors import LayoutError
from engine.plan.setup import Job, PlanLayout
from engine.spec.check import check
from engine.spec.job import JobSpec
from engine.spec.load import dump_recipe
from engine.spec.problem import RecipeProblems
from engine.spec.recipe import (
    BatchSpec,
    DataSpec,
    OverlapSpec,
    Precision,
    Recipe,
    ScheduleSpec,
    TrainSpec,
)
from engine.spec.shape import cuts, legal, resolve_kind

TRAINED: tuple[str, ...] = get_args(Precision)
"""Precisions that `msctl train` has."""
_PIECES = 4
_START_S, _START_NODE_S = 119.5, 0.5
"""Longest start of a planned run: two minutes, and half a second for each further node."""
FILE = "planned.toml"
"""The recipe's name in the script that starts it."""


def obstacle(job: Job, layout: PlanLayout, base: Recipe | None = None) -> str:
    """Why `msctl train` cannot run a layout, in words; empty if it can."""
    foreign = _foreign(job, layout)
    if foreign:
        return foreign
    problems = check(recipe_of(job, layout, base, base.train.steps if base else 1))
    return problems[0].what if problems else ""


def _foreign(job: Job, layout: PlanLayout) -> str:
    """What the engine does not have at all."""
    axes = {
        "ZeRO-3": layout.zero > 2,
        f"cp = {layout.cp}": layout.cp > 1,
        f"ep = {layout.ep}": layout.ep > 1,
        "experts": job.experts is not None,
        f"precision {job.precision}": job.precision not in TRAINED,
    }
    return ", ".join(name for name, is_so in axes.items() if is_so)


def recipe(job: Job, layout: PlanLayout, steps: int, base: Recipe | None = None) -> str:
    """The TOML that `msctl train` takes; LayoutError or RecipeProblems if it would not."""
    return dump_recipe(_checked(job, layout, steps, base))


def _checked(job: Job, layout: PlanLayout, steps: int, base: Recipe | None) -> Recipe:
    foreign = _foreign(job, layout)
    if foreign:
        raise LayoutError(
            f"`msctl train` has no {foreign}",
            remedy="hold what it has: --set layout.zero=2 --set layout.cp=1 --set layout.ep=1 "
            f"--precision bf16 (it trains {', '.join(TRAINED)}); experts it does not train",
        )
    made = recipe_of(job, layout, base, steps)
    problems = check(made)
    if problems:
        where = "the planned recipe"
        raise RecipeProblems(tuple(replace(problem, where=where) for problem in problems))
    return made


def recipe_of(job: Job, layout: PlanLayout, base: Recipe | None, steps: int) -> Recipe:
    """The recipe of a layout that the engine has, whether or not its parts fit together."""
    ours = layout.parallel()
    assert ours is not None, f"the engine has {layout}"
    base = base or _bare(job)
    need = -(-layout.world_size // job.cluster.gpus_per_node)
    room = base.job.nodes * job.cluster.gpus_per_node
    same = layout.world_size == base.layout.world_size and room >= layout.world_size
    across = need > 1 and base.train.store == "tcp"  # nodes of a scheduler join through Redis
    cluster = base.cluster
    if cluster is not None and cluster.world_size < layout.world_size:
        cluster = job.cluster
    return replace(
        base,
        model=job.model,
        batch=BatchSpec(global_batch=job.global_batch, micro_batch=layout.micro_batch),
        layout=ours,
        schedule=_schedule(job, layout, base.schedule),
        overlap=_overlap(job, layout, base.overlap),
        train=replace(
            base.train, steps=steps, precision=job.precision, recompute=layout.recompute,
            store="redis" if across else base.train.store,
        ),
        job=_kept_alive(base.job, layout, base.job.nodes if same else need),
        cluster=cluster,
    )  # fmt: skip


def _kept_alive(base: JobSpec, layout: PlanLayout, nodes: int) -> JobSpec:
    """What the driver may do, for so many nodes: more of them take longer to meet and to load."""
    return replace(
        base, nodes=nodes, start_s=max(base.start_s, _START_S + _START_NODE_S * nodes),
        sdc_every=base.sdc_every if layout.dp > 1 else 0,
    )  # fmt: skip


def _bare(job: Job) -> Recipe:
    """What a model without a recipe starts from; ranks that share cores have no GPU."""
    return Recipe(
        name="planned",
        model=job.model,
        batch=BatchSpec(global_batch=job.global_batch),
        data=DataSpec(format="synthetic", source=()),
        train=TrainSpec(device="cpu" if job.cluster.cores else "cuda"),
        cluster=job.cluster,
    )


def _schedule(job: Job, layout: PlanLayout, base: ScheduleSpec) -> ScheduleSpec:
    """The planned order; rounds and running ahead stay where the order has them."""
    kind = base.kind
    if resolve_kind(kind, layout.vpp) != resolve_kind(layout.schedule, layout.vpp):
        kind = layout.schedule
    count = job.global_batch // (layout.micro_batch * layout.dp)
    order = resolve_kind(kind, layout.vpp)
    if legal(order, layout.pp, layout.vpp, count, base.group, base.run_ahead):
        return ScheduleSpec(kind=kind)
    return replace(base, kind=kind)


def _overlap(job: Job, layout: PlanLayout, base: OverlapSpec) -> OverlapSpec:
    """The switches that the prediction counts on, where they hide anything."""
    part = job.model.seq // layout.tp
    tp = job.profile.overlap_tp and layout.tp > 1 and layout.sequence_parallel and bool(cuts(part))
    pieces = base.tp_pieces
    if tp and pieces < 2:
        pieces = _PIECES
    if pieces > 1 and part % pieces:
        pieces = 0
    halves = base.tp_halves and layout.micro_batch % 2 == 0 and layout.recompute != "full"
    return replace(
        base, tp=tp or (halves and base.tp), pp=job.profile.overlap_pp, dp=job.profile.overlap_dp,
        tp_pieces=pieces, tp_halves=halves,
    )  # fmt: skip


def sbatch(job: Job, layout: PlanLayout, steps: int, base: Recipe | None = None) -> str:
    """A script around the recipe: the driver, which asks Slurm for the nodes by itself."""
    made = _checked(job, layout, steps, base)
    each = -(-layout.world_size // made.job.nodes)
    store = " --set train.store=redis" if made.train.store == "tcp" else ""
    return f"""#!/bin/sh
# {made.job.nodes} nodes of {each} devices, {steps} steps of {job.global_batch} sequences.
# {FILE}: the same `msctl plan` with --emit recipe. This script only runs the driver, which submits
# an array of one task a node and follows it; --dry-run shows that array. Run it on a login node,
# or with sbatch where a small task fits beside the nodes, in a folder that all nodes see.
#SBATCH --job-name={made.name}-driver
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
exec msctl train {FILE} --on slurm{store} "$@"
"""
