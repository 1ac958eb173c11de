"""Numbers of the run for people and programs: metrics.jsonl and TensorBoard, by rank 0."""

import os
from pathlib import Path

import msgspec

from engine.errors import TraceError
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
    """Model FLOP/s over peak, 0..1; windows are credited at their cost, full attention in full."""
    memory_bytes: int
    """Peak memory of rank 0."""
    skipped: bool = False
    """The batch was left out; numbers that were not finite are written as 0 then."""
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


class MetricsTail:
    """What a run adds to metrics.jsonl, though its writer first replaces the file.

    A resumed run drops the lines of steps that it will do again. So the file is read anew when it
    is another one, and lines that were there when the tail was made are left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        earlier = read_metrics(path)
        self._earlier = {line.step: line for line in earlier}
        self.last = earlier[-1] if earlier else None
        """The newest line of all, also one of an earlier invocation."""
        self._file, self._at = (path.stat().st_ino, path.stat().st_size) if earlier else (0, 0)

    def new(self) -> list[StepMetrics]:
        """Lines that were completed since the last call."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            number = os.fstat(file.fileno()).st_ino
            if number != self._file:
                self._file, self._at = number, 0
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = _decode(whole, self._path)
        found = [line for line in lines if self._earlier.get(line.step) != line]
        if lines:
            self.last = lines[-1]
        self._earlier.update((line.step, line) for line in found)
        return found


def read_metrics(path: Path) -> list[StepMetrics]:
    """All complete lines of a metrics file; a torn last line is left out.

    Raises TraceError for a line that is none of ours.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return _decode(data[: data.rfind(b"\n") + 1], path)


def _decode(data: bytes, path: Path) -> list[StepMetrics]:
    decoder = msgspec.json.Decoder(StepMetrics)
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(
                f"{path}: line {number} of what was read is no metrics: {error}",
                remedy="delete that line, or the file: it is written anew from the next step on",
            ) from None
    return found


def _forget_after(path: Path, step: int) -> None:
    """Drop lines of steps that a resumed run will do again, atomically."""
    kept = [m for m in read_metrics(path) if m.step <= step]
    if not path.exists():
        return
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(b"".join(msgspec.json.encode(m) + b"\n" for m in kept))
    os.replace(fresh, path)
