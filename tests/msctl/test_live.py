"""Progress lines: all that is promised, as often as asked for, in place on a terminal."""

import io

import msgspec
import pytest
from rich.console import Console

from engine.train.metrics import StepMetrics
from msctl.commands.live import Live
from msctl.ui import Ui
from tests.engine.train.single import recipe


def metrics(step: int, **more: float) -> StepMetrics:
    return StepMetrics(
        step=step, loss=2.5, grad_norm=0.75, lr=1e-3, tokens=step, tokens_per_s=12_500.0,
        step_s=0.25, mfu=0.421, memory_bytes=1, **more,
    )  # fmt: skip


def follow(ui: Ui, steps: range, *, log_every: int = 1, total: int = 10, **more: float) -> None:
    made = recipe(train={"steps": total}, monitor={"log_every": log_every})
    with Live(ui, made) as live:
        for step in steps:
            live.step(metrics(step, **more))


def test_a_line_has_step_loss_norm_speed_mfu_and_time_to_come(capsys):
    follow(Ui(), range(4, 5))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "step 4/10  loss 2.5000  grad 0.750  12.5 k tokens/s  MFU 42.1 %  step 250 ms  ETA 1.5 s\n"
    )


def test_lines_come_as_often_as_the_recipe_says_and_at_the_end(capsys):
    follow(Ui(), range(1, 11), log_every=4)
    steps = [line.split("/")[0] for line in capsys.readouterr().err.splitlines()]
    assert steps == ["step 4", "step 8", "step 10"]


def test_the_last_step_has_no_time_to_come(capsys):
    follow(Ui(), range(9, 11))
    lines = capsys.readouterr().err.splitlines()
    assert ["ETA" in line for line in lines] == [True, False]


def test_a_validation_is_always_told(capsys):
    follow(Ui(), range(3, 4), log_every=100, val_loss=1.5, val_loss_per_byte=1.25)
    assert "held-out 1.2500 nats/byte" in capsys.readouterr().err


def test_quiet_tells_nothing(capsys):
    follow(Ui(quiet=True), range(1, 11))
    assert capsys.readouterr() == ("", "")


def test_the_time_to_come_follows_the_latest_steps(capsys):
    made = recipe(train={"steps": 140})
    with Live(Ui(), made) as live:
        for step in range(1, 41):
            slow = msgspec.structs.replace(metrics(step), step_s=10.0 if step <= 20 else 1.0)
            live.step(slow)
    assert "ETA 100 s" in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    """A Ui whose stderr is a terminal, and what it shows."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, markup=False)
    monkeypatch.setattr(Ui, "is_live", property(lambda self: not self.quiet))
    monkeypatch.setattr("msctl.ui._console", lambda file: console)
    return shown


def test_on_a_terminal_steps_are_shown_in_place_and_validations_stay(terminal):
    ui = Ui()
    made = recipe(train={"steps": 100})
    with Live(ui, made) as live:
        live.step(metrics(1))
        live.step(metrics(2, val_loss=1.5, val_loss_per_byte=1.25))
        live.step(metrics(3))
    text = terminal.getvalue()
    assert "held-out 1.2500 nats/byte\n" in text
    assert text.count("step 1/100") <= 2, "a step is not a line of its own"
    assert "\x1b[?25h" in text, "the cursor is back"


def test_the_terminal_is_left_clean_after_an_error(terminal):
    with pytest.raises(RuntimeError), Live(Ui(), recipe()):
        raise RuntimeError("rank 0 died")
    assert "\x1b[?25h" in terminal.getvalue()
