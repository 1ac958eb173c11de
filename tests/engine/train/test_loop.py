"""The loop on one rank: when it validates, saves, stops and goes on, bit by bit."""

import os
from pathlib import Path

import pytest

from engine.ckpt.catalog import catalog
from engine.errors import CheckpointError
from tests.engine.train.single import loop_of, numbers, recipe, run


def saved_steps(folder: Path) -> list[int]:
    return sorted(c.step for c in catalog(folder / "ckpt"))


def test_every_step_leaves_a_line(tmp_path: Path):
    made = recipe()
    lines = run(tmp_path, made)
    assert [m.step for m in lines] == [1, 2, 3, 4, 5, 6]
    assert [m.tokens for m in lines] == [32 * s for s in range(1, 7)]
    for m in lines:
        assert m.tokens_per_s == pytest.approx(32 / m.step_s)
        assert m.loss > 0
        assert m.grad_norm > 0
        assert m.mfu > 0
        assert m.memory_bytes > 1 << 20
    assert lines[0].lr == pytest.approx(1e-2)


def test_validation_comes_when_due_and_at_the_end(tmp_path: Path):
    lines = run(tmp_path, recipe(train={"eval_every": 4}))
    assert [m.step for m in lines if m.val_loss is not None] == [4, 6]


def test_without_validation_batches_nothing_is_held_out(tmp_path: Path):
    lines = run(tmp_path, recipe(train={"eval_batches": 0}))
    assert all(m.val_loss is None for m in lines)


@pytest.mark.parametrize(
    ("every", "at_end", "steps"),
    [(0, True, [6]), (2, True, [2, 4, 6]), (4, True, [4, 6]), (4, False, [4]), (0, False, [])],
)
def test_checkpoints_come_when_due_and_at_the_end(tmp_path: Path, every, at_end, steps):
    run(tmp_path, recipe(checkpoint={"every": every, "at_end": at_end, "keep": 0}))
    assert (saved_steps(tmp_path) if steps else []) == steps
    assert (tmp_path / "ckpt").exists() == bool(steps)


def test_only_the_newest_are_kept(tmp_path: Path):
    run(tmp_path, recipe(checkpoint={"every": 1, "keep": 2}))
    assert saved_steps(tmp_path) == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_stopping_after_any_step_and_going_on_is_bitwise_the_whole_run(tmp_path: Path, dropout):
    made = recipe(model={"dropout": dropout})
    whole = numbers(run(tmp_path / "whole", made))
    for k in (1, 3, 5):
        folder = tmp_path / f"cut-{k}"
        assert numbers(run(folder, made, steps=k)) == whole[:k]
        assert numbers(run(folder, made)) == whole


def test_going_on_from_an_earlier_checkpoint_redoes_its_steps(tmp_path: Path):
    made = recipe(checkpoint={"every": 2, "keep": 0})
    whole = numbers(run(tmp_path, made))
    again = run(tmp_path, made, resume="2", steps=1)
    assert numbers(again) == whole[:3], "lines of steps to be redone are dropped"


def test_a_finished_run_has_nothing_to_do(tmp_path: Path):
    made = recipe()
    first = run(tmp_path, made)
    assert run(tmp_path, made) == first


def test_a_request_to_stop_saves_whatever_the_recipe_says(tmp_path: Path):
    loop = loop_of(tmp_path, recipe(checkpoint={"at_end": False}))
    loop.ask_to_stop()
    loop.run()
    assert saved_steps(tmp_path) == [1]


def test_a_step_that_was_not_saved_is_refused(tmp_path: Path):
    run(tmp_path, recipe())
    with pytest.raises(CheckpointError, match="no committed checkpoint of step 3"):
        run(tmp_path, recipe(), resume="3")


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path):
    made = recipe(checkpoint={"every": 2, "keep": 0})
    whole = numbers(run(tmp_path, made, steps=4))
    shard = next((tmp_path / "ckpt" / "step-00000004").glob("*.st*"), None)
    shard = shard or max((tmp_path / "ckpt" / "step-00000004").iterdir(), key=os.path.getsize)
    shard.write_bytes(shard.read_bytes()[:-100])
    again = numbers(run(tmp_path, made, steps=2))
    assert again == whole, "continued from step 2"


def test_the_same_recipe_gives_the_same_bits(tmp_path: Path):
    made = recipe(model={"dropout": 0.1})
    assert numbers(run(tmp_path / "a", made)) == numbers(run(tmp_path / "b", made))
