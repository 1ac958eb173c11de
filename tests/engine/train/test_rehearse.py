"""Which faults a rank does to itself, in which start of the job; without drills nothing changes."""

import math

import msgspec
import pytest

from engine.events.writer import EventWriter
from engine.spec.job import JobSpec
from engine.train.failure import BadNumbers
from engine.train.metrics import read_metrics
from engine.train.rehearse import Rehearsal, faults_of, trainer_of
from engine.train.strike import note_strike, read_strikes
from engine.train.task import RankTask
from engine.train.trainer import Trainer
from tests.engine.train.single import engine_of, loop_of, recipe


def task(*drills: str, attempt: int = 0, folder: str = "") -> RankTask:
    return RankTask(folder=folder, world=1, host="", port=0, drills=drills, attempt=attempt)


def test_a_fault_is_for_its_rank():
    one = task("crash:rank=1@step=3", "nan:rank=1@step=4,times=2", "kill:rank=1@step=2")
    assert [f.kind for f in faults_of(1, one)] == ["crash", "nan"]
    assert faults_of(0, one) == ()


def test_a_bug_is_of_every_rank_and_every_start():
    assert [f.kind for f in faults_of(5, task("bug@step=1", attempt=9))] == ["bug"]


def test_without_a_drill_the_trainer_is_the_plain_one():
    made = recipe()
    assert type(trainer_of(made, engine_of(made), EventWriter(None, 0), task())) is Trainer


def rehearse(tmp_path, text: str, **sections) -> Rehearsal:
    loop = loop_of(tmp_path, recipe(**sections))
    made = trainer_of(loop.recipe, loop.trainer.engine, loop.trainer.events,
                      task(text, folder=str(tmp_path)))  # fmt: skip
    assert isinstance(made, Rehearsal)
    loop.trainer = made
    return loop


def test_an_exception_comes_at_its_step_and_is_noted(tmp_path):
    loop = rehearse(tmp_path, "exception@step=2")
    with pytest.raises(ValueError, match="a drill raised this"):
        loop.run()
    assert list(read_strikes(tmp_path)) == ["exception:rank=0@step=2"]


def test_what_has_come_as_often_as_it_shall_does_not_come_again(tmp_path):
    note_strike(tmp_path, "exception:rank=0@step=2")
    rehearse(tmp_path, "exception@step=2").run()


def test_bad_numbers_say_which_samples_they_came_from(tmp_path):
    loop = rehearse(tmp_path, "nan@step=3")
    with pytest.raises(BadNumbers) as caught:
        loop.run()
    assert caught.value.step == 3
    assert "samples are 12 to 15" in caught.value.what


def test_a_flipped_bit_changes_the_numbers_from_its_step_on_and_nothing_fails(tmp_path):
    (tmp_path / "right").mkdir()
    loop_of(tmp_path / "right", recipe()).run()
    right = read_metrics(tmp_path / "right" / "metrics.jsonl")
    rehearse(tmp_path, "flip@step=3").run()
    wrong = read_metrics(tmp_path / "metrics.jsonl")
    assert [a.loss == b.loss for a, b in zip(right, wrong, strict=True)] == [True] * 3 + [False] * 3


def test_bad_numbers_may_be_left_out_in_place(tmp_path):
    loop = rehearse(tmp_path, "nan@step=3")
    loop.recipe = msgspec.structs.replace(loop.recipe, job=JobSpec(bad_numbers="skip"))
    loop.trainer.recipe = loop.recipe
    loop.run()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row.skipped for row in rows] == [False, False, False, True, False, False]
    assert all(math.isfinite(row.loss) for row in rows)
    assert rows[4].loss > 0, "weights were not touched by the bad step"
