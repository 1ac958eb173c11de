"""Where checkpoints of a run lie, and which one to continue from."""

from pathlib import Path

from engine.ckpt.catalog import latest
from engine.errors import CheckpointError


def step_folder(run: Path, step: int) -> Path:
    """The checkpoint of the state after `step` updates."""
    return run / "ckpt" / f"step-{step:08d}"


def checkpoint_to_resume(run: Path, wish: str) -> Path | None:
    """`auto`: the newest valid one, or none; `never`: none; a number: exactly that step."""
    if wish == "never":
        return None
    if wish == "auto":
        return latest(run / "ckpt")
    folder = step_folder(run, int(wish))
    if not (folder / "COMMITTED").exists():
        raise CheckpointError(
            f"{folder}: no committed checkpoint of step {wish}",
            remedy=f"choose one of `msctl ckpt list {run}`, or --resume auto",
        )
    return folder
