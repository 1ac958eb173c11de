"""Where checkpoints of a run lie, and which one to continue from."""

import os
from pathlib import Path

from engine.ckpt.catalog import folder_name, valid_folders
from engine.ckpt.store import absolute, open_store
from engine.errors import CheckpointError

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


def checkpoint_to_resume(root: str, wish: str) -> str | None:
    """`auto`: the newest valid one, or none; `never`: none; a number: exactly that step.

    `auto` returns the folder of all checkpoints, from which loading falls back to older ones.
    """
    if wish == "never":
        return None
    store = open_store(root)
    if wish == "auto":
        return root if next(valid_folders(store), None) else None
    name = next(
        (f for f in valid_folders(store) if f.partition(".")[0] == folder_name(int(wish))), ""
    )
    if not name:
        raise CheckpointError(
            f"{root}/{folder_name(int(wish))}: no committed checkpoint of step {wish}",
            remedy=f"choose one of `msctl ckpt list {root}`, or --resume auto",
        )
    return f"{root}/{name}"
