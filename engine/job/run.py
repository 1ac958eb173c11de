"""A run's folder: where it is, what is in it, how it ended."""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from engine.errors import MissingError, RecipeError
from engine.spec.base import Noun
from engine.spec.load import dump_recipe, load_recipe
from engine.spec.recipe import Recipe

logger = logging.getLogger(__name__)

RESULT = "result.json"


class RunResult(Noun, frozen=True, kw_only=True):
    """How an invocation of `train` ended."""

    job: str
    folder: str
    ended: Literal["done", "interrupted", "failed"]
    steps: int
    """Optimizer updates done in all."""
    total_steps: int
    tokens: int
    seconds: float
    """Of this invocation, start-up included."""
    start_s: float = 0.0
    """From the request to fork until the first step ended, less that step."""
    loss: float | None = None
    val_loss: float | None = None
    val_loss_per_byte: float | None = None
    tokens_per_s: float = 0.0
    mfu: float = 0.0
    restarts: int = 0
    cause: str = ""


def run_folder(recipe: Recipe, wish: Path | None, *, root: Path, resume: str) -> Path:
    """The folder of a run: as asked for, else `root/NAME`.

    With resume `never`, a name that is taken gets the next free number, so that no run is
    overwritten.
    """
    if wish is not None:
        if resume == "never" and (wish / "recipe.toml").exists():
            raise RecipeError(
                f"{wish}: holds a run already, and --resume never would overwrite it",
                remedy="name another --run folder, or leave out --resume never to continue it",
            )
        return wish
    folder = root / recipe.name
    number = 2
    while resume == "never" and (folder / "recipe.toml").exists():
        folder = root / f"{recipe.name}-{number}"
        number += 1
    return folder


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other drivers out of a run's folder; the kernel gives it back however this one ends.

    Raises MissingError if another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+")
    except OSError as error:
        raise MissingError(
            f"{folder}: no run can be kept here: {error.strerror or error}",
            remedy="name a --run folder (or --runs) that this user may write to",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read(20).strip() or "unknown"
            raise MissingError(
                f"{folder}: a run is going on in it (process {owner})",
                remedy="wait for it or end it, or name another --run folder",
            ) from None
        except OSError:
            logger.warning("%s: its file system knows no locks; start one run in it only", folder)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def prepare_folder(folder: Path, recipe: Recipe) -> None:
    """Write the resolved recipe, unless the folder holds a run that this one cannot continue.

    A resumed run may change layout, steps, monitoring and the like; not what its weights or its
    order of samples mean.
    """
    path = folder / "recipe.toml"
    if path.exists():
        earlier = _fixed(load_recipe(path))
        changed = [
            f"{key} = {value} (it has {earlier.get(key)})"
            for key, value in _fixed(recipe).items()
            if value != earlier.get(key)
        ]
        if changed:
            raise RecipeError(
                f"{folder}: the run in it cannot go on with {', '.join(changed)}",
                remedy=f"name another --run folder, or continue with {path}",
            )
    folder.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(dump_recipe(recipe), encoding="utf-8")
    os.replace(fresh, path)


def _fixed(recipe: Recipe) -> dict[str, object]:
    """What a run keeps for life, by key: all that its weights and its order of samples mean."""
    kept: dict[str, object] = {"seed": recipe.seed, "batch.global_batch": recipe.batch.global_batch}
    for section in ("model", "data"):
        values = msgspec.structs.asdict(getattr(recipe, section))
        kept |= {f"{section}.{key}": value for key, value in values.items()}
    kept.pop("data.cache")
    return kept


def write_result(folder: Path, result: RunResult) -> None:
    """Leave the result where `diagnose` and people look for it."""
    fresh = folder / f"{RESULT}.tmp"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    os.replace(fresh, folder / RESULT)


def read_result(folder: Path) -> RunResult | None:
    """The last result, or None if there is none or it is unreadable."""
    try:
        return msgspec.json.decode((folder / RESULT).read_bytes(), type=RunResult)
    except (OSError, msgspec.DecodeError):
        return None


def valid_resume(wish: str) -> bool:
    """Whether `--resume` was given a word or number it knows."""
    return wish in ("auto", "never") or re.fullmatch(r"[0-9]{1,9}", wish) is not None
