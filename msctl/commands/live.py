"""Progress of a run while it goes on: a redrawn line on a terminal, plain lines in a pipe."""

from types import TracebackType

from engine.spec.recipe import Recipe
from engine.train.metrics import StepMetrics
from engine.units import show_count, show_ratio, show_seconds
from msctl.ui import Ui


class Live:
    """Shows each step's numbers on stderr."""

    def __init__(self, ui: Ui, recipe: Recipe) -> None:
        self.ui, self.recipe = ui, recipe
        self._recent: list[float] = []
        self._status = ui.stderr.status("starting ranks") if ui.is_live else None

    def __enter__(self) -> "Live":
        """Begin to show."""
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal clean."""
        if self._status is not None:
            self._status.stop()

    def note(self, text: str) -> None:
        """Something happened that is no step."""
        self.ui.note(text)

    def step(self, metrics: StepMetrics) -> None:
        """One step ended."""
        self._recent = [*self._recent[-19:], metrics.step_s]
        text = self._line(metrics)
        due = metrics.step % self.recipe.monitor.log_every == 0
        held_out = metrics.val_loss is not None
        if self._status is not None:
            self._status.update(text)
            due = held_out
        if due or held_out or metrics.step == self.recipe.train.steps:
            self.ui.note(text)

    def _line(self, m: StepMetrics) -> str:
        total = self.recipe.train.steps
        left = (total - m.step) * sum(self._recent) / len(self._recent)
        eta = f"  ETA {show_seconds(left)}" if left > 0 else ""
        held_out = "" if m.val_loss_per_byte is None else (
            f"  held-out {m.val_loss_per_byte:.4f} nats/byte"
        )  # fmt: skip
        return (
            f"step {m.step}/{total}  loss {m.loss:.4f}  grad {m.grad_norm:.3f}  "
            f"{show_count(m.tokens_per_s)} tokens/s  MFU {show_ratio(m.mfu)}  "
            f"step {show_seconds(m.step_s)}{eta}{held_out}"
        )
