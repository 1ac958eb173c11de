"""Whether this machine can hold a run at all, found out before anything is started."""

import os
from pathlib import Path

from engine.errors import MissingError
from engine.spec.recipe import Recipe

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
            f"layout: {world} ranks are needed, this machine has room for {limit} {kind}",
            remedy="run it on the cluster, look at it here with --dry-run, or shrink it, e.g. "
            "--set layout.tp=1 --set layout.pp=1 --set layout.vpp=1 --set layout.dp=1",
        )
    if not wants_gpu:
        _check_memory(recipe)


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
