"""Where a run's nodes are: here, under Slurm, on Kubernetes; and what would be started there."""

import shlex
from pathlib import Path
from typing import Literal, get_args

from engine.errors import RecipeError
from engine.health.launch import reachable_host
from engine.job.kubernetes import KubernetesLauncher, manifest, text
from engine.job.place import LocalPlace, Place
from engine.job.remote import Launcher, NoLauncher, RemotePlace
from engine.job.slurm import SlurmLauncher, script
from engine.spec.base import Noun
from engine.spec.recipe import Recipe

Where = Literal["local", "slurm", "k8s", "join"]
"""join: nodes are started by somebody else, e.g. torchrun, and join by themselves."""


class Start(Noun, frozen=True, kw_only=True):
    """What `--dry-run` shows of a start elsewhere: the text that would be handed over."""

    where: Where
    text: str


def known(where: str) -> Where:
    """RecipeError for a place that there is not."""
    for one in get_args(Where):
        if where == one:
            return one
    raise RecipeError(f"--on {where}: no such place", remedy="use local, slurm, k8s or join")


def place_of(where: Where, recipe: Recipe) -> Place:
    """The place that a driver works with."""
    _check(where, recipe)
    if where == "local":
        return LocalPlace()
    launcher: Launcher = NoLauncher()
    if where == "slurm":
        launcher = SlurmLauncher(recipe)
    elif where == "k8s":
        launcher = KubernetesLauncher(recipe)
    return RemotePlace(launcher, host=reachable_host())


def _check(where: Where, recipe: Recipe) -> None:
    """What a start there needs of the recipe; RecipeError."""
    if where != "local" and recipe.train.store == "tcp":
        raise RecipeError(
            f"--on {where}: nodes join through Redis, but train.store is tcp",
            remedy="set train.store = redis, or the URL of a server that all nodes reach",
        )
    if where == "k8s" and not recipe.k8s.image.strip():
        raise RecipeError(
            "--on k8s: k8s.image names no image for the pods",
            remedy="build one with containers/Dockerfile: --set k8s.image=REGISTRY/NAME:TAG",
        )
    if where != "local":
        _check_nodes(where, recipe)


def _check_nodes(where: Where, recipe: Recipe) -> None:
    """RecipeError if a node would be asked for more devices than [cluster] says it has."""
    machines, nodes = recipe.cluster, recipe.job.nodes
    if machines is None or recipe.train.device != "cuda":
        return
    each = -(-recipe.layout.world_size // nodes)
    if each > machines.gpus_per_node:
        need = -(-recipe.layout.world_size // machines.gpus_per_node)
        raise RecipeError(
            f"--on {where}: job.nodes = {nodes} puts {each} ranks on a node, but "
            f"cluster.gpus_per_node = {machines.gpus_per_node}",
            remedy=f"set the nodes that carry ranks, e.g. --set job.nodes={need}",
        )


def preview(where: Where, recipe: Recipe, folder: Path) -> Start:
    """The script or manifest of a start, without starting anything.

    Refuses what the start itself would refuse.
    """
    _check(where, recipe)
    shown = f"python -m engine.job.join {shlex.quote(str(folder.resolve()))}\n"
    if where == "slurm":
        shown = script(recipe, folder)
    elif where == "k8s":
        shown = text(manifest(recipe, folder.resolve()))
    return Start(where=where, text=shown)
