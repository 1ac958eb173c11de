"""Whether a run can be had at all, on this machine and in its folder, before anything starts."""

import os
from pathlib import Path

from engine.ckpt.catalog import describe, parse_folder, step_folders
from engine.ckpt.store import open_store
from engine.errors import MissingError, RecipeError
from engine.spec.recipe import Recipe
from engine.train.resume import checkpoint_root, checkpoint_to_resume
from engine.units import show_number

_RANKS_PER_CORE = 16
"""On CPU ranks share cores; beyond this a step is mostly waiting."""

_STATE_BYTES = {"fp64": 32, "fp32": 16, "bf16": 18}
"""Weights, gradients, master and two moments of one parameter, without sharding."""


def local_gpus() -> int:
    """CUDA devices of this node, counted by their device files."""
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def check_machine(recipe: Recipe) -> None:
    """MissingError if the run needs more devices or memory than this machine has."""
    world, gpus = recipe.layout.world_size, local_gpus()
    wants_gpu = recipe.train.device == "cuda" or (recipe.train.device == "auto" and gpus > 0)
    limit = gpus if wants_gpu else _RANKS_PER_CORE * (os.cpu_count() or 1)
    if world > limit:
        kind = "CUDA devices" if wants_gpu else "ranks on its CPU"
        raise MissingError(
            f"layout: {show_number(world, 'rank')} {'is' if world == 1 else 'are'} needed, "
            f"this machine has room for {limit} {kind}",
            remedy="run it on the cluster, look at it here with --dry-run, or shrink it, e.g. "
            + " ".join(f"--set {setting}" for setting in _smallest(recipe)),
        )
    if not wants_gpu:
        _check_memory(recipe)


def _smallest(recipe: Recipe) -> list[str]:
    """Settings with which one rank trains it, where the recipe says otherwise for its cluster."""
    layout = [f"layout.{degree}=1" for degree in ("tp", "pp", "vpp", "dp")]
    job = {"nodes": 1, "spares": 0, "sdc_every": 0}
    differ = [f"job.{key}={v}" for key, v in job.items() if getattr(recipe.job, key) != v]
    return layout + differ


def check_resume(recipe: Recipe, folder: Path, wish: str, *, look: bool) -> None:
    """RecipeError if the run in a folder is beyond the recipe's end already.

    look    whether a certain step has to be there now; ranks may also find it in memory, and say
            so themselves: CheckpointError
    """
    root = checkpoint_root(folder, recipe.checkpoint.path)
    if wish.isdigit() and look:
        checkpoint_to_resume(root, wish)
    done = int(wish) if wish.isdigit() else 0
    if wish == "auto" and (folder / "recipe.toml").exists():
        done = _newest_step(root)
    if done > recipe.train.steps:
        raise RecipeError(
            f"{folder}: it would go on after step {done}, but train.steps = {recipe.train.steps}",
            remedy=f"set train.steps above {done}, continue from an earlier step with --resume "
            "STEP, or name another --run folder",
        )


def _newest_step(root: str) -> int:
    """Step of the newest checkpoint that is whole; 0 if there is none."""
    store = open_store(root)
    for name in reversed(step_folders(store)):
        if describe(store, name).state == "committed":
            return (parse_folder(name) or (0, 1))[0]
    return 0


def _check_memory(recipe: Recipe) -> None:
    copies = recipe.layout.dp  # weights and gradients; moments are sharded, so this is generous
    state = _STATE_BYTES[recipe.train.precision]
    need = recipe.model.params * (state + (copies - 1) * state // 2)
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > have:
        raise MissingError(
            f"model: weights and optimizer need about {need / 2**30:.0f} GiB, "
            f"this machine has {have / 2**30:.0f} GiB",
            remedy="run it on the cluster, or choose a smaller model.preset",
        )
