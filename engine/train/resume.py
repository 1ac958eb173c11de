"""Where checkpoints of a run lie, and which one to continue from."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.ckpt.catalog import folder_name, folder_of_step, read_manifest, valid_folders
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.store import absolute, open_store
from engine.errors import CheckpointError, EngineError
from engine.spec.model import ModelSpec
from engine.spec.recipe import Recipe
from engine.spec.toml import parse_toml

CHECKPOINTS = "ckpt"
"""The folder of checkpoints inside a run folder."""

_IDENTITY = ".run-id"
_IDENTITY_BYTES = 16


def checkpoint_root(run: Path, path: str) -> str:
    """Folder or URL of a run's checkpoints; `path` is the recipe's, `{run}` in it the run's name.

    A relative path begins at the working folder, as everywhere on the command line.
    """
    if not path:
        return absolute(run / CHECKPOINTS)
    return absolute(path.replace("{run}", run.absolute().name).rstrip("/"))


def run_identity(run: Path) -> str:
    """A word that no other run has, kept in the run's folder: names what it has in memory.

    The first caller makes it, so one rank asks and tells the others.
    """
    path = run / _IDENTITY
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it is a secret too
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(os.urandom(_IDENTITY_BYTES).hex())
    except FileExistsError:
        pass
    found = path.read_bytes()[: 2 * _IDENTITY_BYTES]
    return found.hex()


class Own(NamedTuple):
    """What tells a run's checkpoints from those of another run in the same place."""

    run: str
    """Name of the run."""
    mark: str
    """Of its identity."""
    is_new: bool
    """It has made no step yet: what is in a place outside its folder may be another's."""


def run_mark(identity: str) -> str:
    """A word for a run's identity, which is a secret, to be written into its checkpoints."""
    return hashlib.sha256(f"mark {identity}".encode()).hexdigest()[:16]


def checkpoint_to_resume(
    root: str, wish: str, *, recipe: Recipe | None = None, own: Own | None = None
) -> str | None:
    """`auto`: the newest valid one, or none; `never`: none; a number: exactly that step.

    `auto` returns the folder of all checkpoints, from which loading falls back to older ones.
    recipe   of this run: a checkpoint whose weights mean something else is an error
    own      given, `auto` refuses checkpoints that another run made
    """
    if wish == "never":
        return None
    store = open_store(root)
    if wish == "auto":
        newest = next(valid_folders(store), None)
        if newest is None:
            return None
        meta = read_manifest(store, newest).meta
        _refuse_other_model(f"{root}/{newest}", meta, recipe)
        _refuse_other_run(f"{root}/{newest}", meta, own)
        return root
    name = folder_of_step(store, int(wish))
    if name is None:
        raise CheckpointError(
            f"{root}/{folder_name(int(wish))}: no committed checkpoint of step {wish}",
            remedy=f"choose one of `msctl ckpt list {root}`, or --resume auto",
        )
    _refuse_other_model(f"{root}/{name}", read_manifest(store, name).meta, recipe)
    return f"{root}/{name}"


_MAY_DIFFER = frozenset({"dropout", "init_std", "seq", "window"})
"""What of a model may change between checkpoint and run without another meaning of its weights."""


def _refuse_other_model(where: str, meta: CheckpointMeta, recipe: Recipe | None) -> None:
    """Shapes may agree where heads, positions or norms do not."""
    try:
        table = parse_toml(meta.recipe_toml, f"{where}, recipe").get("model")
        there = msgspec.convert(table, ModelSpec) if recipe is not None and table else None
    except (EngineError, msgspec.ValidationError):
        return  # of another program or version: shapes are compared all the same
    if there is None or recipe is None:
        return
    here = recipe.model
    differ = [
        f"model.{key} = {getattr(there, key)} (here {getattr(here, key)})"
        for key in ModelSpec.__struct_fields__
        if key not in _MAY_DIFFER and getattr(there, key) != getattr(here, key)
    ]
    if differ:
        raise CheckpointError(
            f"{where}: its weights belong to another model: {', '.join(differ[:4])}",
            remedy="train with the model of the checkpoint (`msctl ckpt show --verbose` prints its "
            "recipe), or name another checkpoint.path",
        )


def _refuse_other_run(where: str, meta: CheckpointMeta, own: Own | None) -> None:
    """A new run that finds checkpoints in a shared place does not go on with them unasked."""
    if own is None or not own.is_new or not meta.run or meta.step == 0:
        return  # imported weights are of no run
    mark = meta.extra.get("run_mark", "")
    if mark != own.mark if mark else meta.run != own.run:
        raise CheckpointError(
            f"{where}: is of another run, {meta.run}",
            remedy="put {run} into checkpoint.path so that each run has a place of its own, or "
            f"continue from it by name: --resume {meta.step}",
        )
