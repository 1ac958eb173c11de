"""Numbers of the run for people and programs: metrics.jsonl and TensorBoard, by rank 0."""

import os
from pathlib import Path

import msgspec

from engine.spec.base import Noun


class StepMetrics(Noun, frozen=True, kw_only=True):
    """One line of metrics.jsonl. Evaluation fields are present on steps that evaluated."""

    step: int
    """Optimizer updates done, from 1."""
    loss: float
    """Mean negative log-likelihood, nats per token."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    tokens: int
    """Tokens seen since the run began."""
    tokens_per_s: float
    step_s: float
    mfu: float
    """Model FLOP/s over peak, 0..1; attention counted in full (docs/explanation/paper-notes.md)."""
    memory_bytes: int
    """Peak memory of rank 0."""
    val_loss: float | None = None
    """Nats per token on held-out text."""
    val_loss_per_byte: float | None = None
    """Nats per byte of held-out text."""


class MetricsWriter:
    """Appends to metrics.jsonl, and to TensorBoard files if asked for."""

    def __init__(self, folder: Path, *, tensorboard: bool, from_step: int) -> None:
        path = folder / "metrics.jsonl"
        _forget_after(path, from_step)
        self._file = path.open("ab")
        self._board = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(
                str(folder / "tensorboard"), purge_step=from_step + 1, flush_secs=10
            )

    def write(self, metrics: StepMetrics) -> None:
        """Append one step; visible to readers at once."""
        self._file.write(msgspec.json.encode(metrics) + b"\n")
        self._file.flush()
        if self._board is not None:
            for name in ("loss", "grad_norm", "lr", "tokens_per_s", "mfu", "val_loss"):
                value = getattr(metrics, name)
                if value is not None:
                    self._board.add_scalar(f"train/{name}", value, metrics.step)

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> list[StepMetrics]:
    """All complete lines of a metrics file; a torn last line is left out."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(StepMetrics)
    lines = path.read_bytes().split(b"\n")
    return [decoder.decode(line) for line in lines[:-1] if line]


def _forget_after(path: Path, step: int) -> None:
    """Drop lines of steps that a resumed run will do again, atomically."""
    kept = [m for m in read_metrics(path) if m.step <= step]
    if not path.exists():
        return
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(b"".join(msgspec.json.encode(m) + b"\n" for m in kept))
    os.replace(fresh, path)
