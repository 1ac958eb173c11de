"""What a run came to, out of its steps."""

import pytest

from engine.errors import RunFailed
from engine.job.cause import Cause
from engine.job.incident import Decision, Incident, Recovery
from engine.job.tally import Tally
from engine.train.metrics import StepMetrics
from tests.engine.train.single import recipe


def step(number, step_s=1.0, **more):
    return StepMetrics(step=number, loss=3.0 / number, lr=0.1, grad_norm=1.0, tokens=32 * number,
                       tokens_per_s=32 / step_s, step_s=step_s, mfu=0.25 * number, memory_bytes=1,
                       skipped=False, **more)  # fmt: skip


def recovery(kind):
    incident = Incident(number=1, kind="crash", what="x", step=1, signature="s", time_s=1.0)
    return Recovery(incident=incident, decision=Decision(kind=kind, why="w"), detected_by="exit")


def test_speed_is_that_of_the_second_half_and_stops_are_no_restarts(tmp_path):
    tally = Tally(recipe(), tmp_path)  # 4 samples of 8 tokens a step
    tally.ask()
    for one in (step(1, 9.0), step(2, 9.0, val_loss=2.5), step(3, 2.0), step(4, 2.0)):
        tally.add(one)
    result = tally.result("done", None, tally.steps[-1], [recovery("restart"), recovery("stop")])
    assert (result.ended, result.steps, result.tokens, result.loss) == ("done", 4, 128, 0.75)
    assert result.tokens_per_s == pytest.approx(32 * 2 / 4.0)
    assert result.mfu == pytest.approx(0.25 * 3.5)
    assert (result.val_loss, result.restarts, result.cause) == (2.5, 1, "")


def test_an_invocation_without_a_step_has_no_speed_and_says_why(tmp_path):
    tally = Tally(recipe(), tmp_path)
    cause = Cause("no GPU", "", RunFailed, is_own=True)
    result = tally.result("failed", cause, step(7), [])
    assert (result.steps, result.tokens_per_s, result.mfu, result.cause) == (7, 0.0, 0.0, "no GPU")
    assert Tally(recipe(), tmp_path).result("failed", cause, None, []).loss is None
