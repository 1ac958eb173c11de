"""Two-stage saves in the loop: overlapped, durable at the end, found in memory after a crash."""

import os
import threading
from pathlib import Path

import msgspec
import pytest

import engine.train.saving
from engine.ckpt.catalog import catalog, read_manifest
from engine.ckpt.copying import HostCopier
from engine.ckpt.leftovers import start_flusher
from engine.ckpt.store import open_store
from engine.errors import CheckpointError, MissingError
from engine.train.loop import Loop
from engine.train.task import RankTask
from tests.engine.train.single import loop_of, numbers, recipe, run

pytestmark = pytest.mark.multi
TWO = {"two_stage": True, "every": 2, "keep": 0}


class Crash(Exception):
    """The rank is gone."""


def crash(loop: Loop, *, at: int) -> None:
    """Run a loop that dies after so many steps, before the next update, as if killed."""
    settle = loop.saver.settle

    def die() -> None:
        settle()
        if loop.trainer.events.step == at + 1:
            raise Crash

    loop.trainer.before_update = die
    with pytest.raises(Crash):
        loop.run()
    two = loop.saver._two
    assert two is not None
    assert two._owner is not None
    os.close(two._owner)  # the kernel does it for a dead process


def steps(folder: Path) -> list[int]:
    return [info.step for info in catalog(folder / "ckpt") if info.state == "committed"]


def kept(folder: Path) -> None:
    """The last save is there; earlier ones may have given way, since these steps take no time."""
    found = steps(folder)
    assert found[-1] == 6
    assert set(found) <= {2, 4, 6}


def test_saves_are_durable_when_the_run_ends_and_the_memory_is_given_back(tmp_path: Path):
    made = recipe(checkpoint=TWO)
    loop = loop_of(tmp_path, made)
    loop.run()
    kept(tmp_path)
    manifest = read_manifest(open_store(tmp_path / "ckpt"), "step-00000006")
    assert manifest.meta.extra["why"] == "interval"
    assert manifest.meta.extra["val_loss"] > 0
    for _ in range(200):
        if not loop.saver.spool.exists():
            break
        threading.Event().wait(0.05)
    assert not loop.saver.spool.exists()


def test_stopped_and_continued_is_bitwise_the_whole_run_and_old_ones_go(tmp_path: Path):
    whole = numbers(run(tmp_path / "whole", recipe()))
    made = recipe(checkpoint=TWO | {"keep": 1})
    assert numbers(run(tmp_path / "cut", made, steps=3)) == whole[:3]
    assert steps(tmp_path / "cut") == [3]
    assert numbers(run(tmp_path / "cut", made)) == whole
    assert steps(tmp_path / "cut") == [6]


def test_a_dead_run_goes_on_from_memory_without_reading_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = numbers(run(tmp_path / "whole", recipe()))
    folder = tmp_path / "cut"
    folder.mkdir()
    made = recipe(checkpoint=TWO)
    crash(loop_of(folder, made), at=4)
    with monkeypatch.context() as patch:
        patch.setattr(engine.train.saving, "load_checkpoint", None)
        patch.setattr(engine.train.saving, "checkpoint_to_resume", None)
        again = loop_of(folder, made)
        again.run()
    assert numbers(run(folder, made)) == whole
    kept(folder)


def test_a_newer_save_that_was_only_begun_in_the_store_does_not_hide_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when a node was lost with its part of it."""
    whole = numbers(run(tmp_path / "whole", recipe()))
    folder = tmp_path / "cut"
    folder.mkdir()
    made = recipe(checkpoint=TWO)
    crash(loop_of(folder, made), at=4)
    (folder / "ckpt" / "step-00000005").mkdir(parents=True)
    (folder / "ckpt" / "step-00000005" / "ATTEMPT").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(engine.train.saving, "load_checkpoint", None)
        loop_of(folder, made).run()
    assert numbers(run(folder, made)) == whole


def test_a_half_copied_snapshot_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = numbers(run(tmp_path / "whole", recipe()))
    folder = tmp_path / "cut"
    folder.mkdir()
    made = recipe(checkpoint=TWO)
    loop = loop_of(folder, made)
    with monkeypatch.context() as patch:
        finish = HostCopier.finish

        def die(self: HostCopier) -> None:
            if loop.trainer.events.step == 5:
                raise Crash
            finish(self)

        patch.setattr(HostCopier, "finish", die)
        crash(loop, at=4)
    assert numbers(run(folder, made)) == whole
    kept(folder)


def test_without_room_training_waits_for_each_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_: object) -> None:
        raise MissingError("arenas need 9 GiB", remedy="use fewer ranks")

    monkeypatch.setattr("engine.ckpt.two_stage.check_room", full)
    run(tmp_path, recipe(checkpoint=TWO))
    assert "training waits for each save instead" in caplog.text
    assert steps(tmp_path) == [2, 4, 6]


def test_a_store_that_takes_nothing_holds_no_step_up_and_the_end_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # it breaks after the start
    monkeypatch.setattr(engine.train.saving.Saver, "_check_store", lambda self: b"")
    (tmp_path / "ckpt").write_text("a file where a folder should be")
    made = recipe(checkpoint=TWO | {"deadline_s": 1.0})
    loop = loop_of(tmp_path, made)
    with pytest.raises(CheckpointError, match="step 6 is in memory but not in"):
        loop.run()
    two = loop.saver._two
    assert two is not None
    assert two._owner is not None
    os.close(two._owner)
    (tmp_path / "ckpt").unlink()
    start_flusher(two.spool, two.options)
    patient = recipe(checkpoint=TWO | {"deadline_s": 60.0})  # its next try may be a while away
    assert run(tmp_path, patient)[-1].step == 6
    assert 6 in steps(tmp_path)


def test_the_clock_saves_too(tmp_path: Path):
    made = recipe(checkpoint={"two_stage": True, "auto": True, "mtbf_h": 1e-6, "at_end": False})
    run(tmp_path, made)
    assert steps(tmp_path), "the first look comes after two steps"


def test_partners_meet_towards_the_store_that_all_nodes_reach():
    made, task = recipe(), RankTask(folder="x", world=1, host="", port=0)
    meeting = engine.train.saving._meeting_host
    assert meeting(made, task) == made.train.host
    far = msgspec.structs.replace(task, store_url="redis://:secret@10.7.0.1:6380/0")
    assert meeting(made, far) == "10.7.0.1"
