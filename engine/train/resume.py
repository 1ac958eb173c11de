"""Where checkpoints of a run lie, which one to continue from, and which ones to keep."""

from pathlib import Path

from engine.ckpt.catalog import folder_name, valid_folders
from engine.ckpt.store import open_store
from engine.errors import CheckpointError

CHECKPOINTS = "ckpt"
"""The folder of checkpoints inside a run folder."""


def checkpoint_to_resume(run: Path, wish: str) -> Path | None:
    """`auto`: the newest valid one, or none; `never`: none; a number: exactly that step.

    `auto` returns the folder of all checkpoints, from which loading falls back to older ones.
    """
    root = run / CHECKPOINTS
    if wish == "never" or (wish == "auto" and not root.exists()):
        return None
    valid = list(valid_folders(open_store(root))) if root.exists() else []
    if wish == "auto":
        return root if valid else None
    name = folder_name(int(wish))
    if name not in valid:
        raise CheckpointError(
            f"{root / name}: no committed checkpoint of step {wish}",
            remedy=f"choose one of `msctl ckpt list {run}`, or --resume auto",
        )
    return root / name
