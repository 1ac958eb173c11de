import subprocess
import sys
import time

import pytest
import torch

from engine.ckpt.catalog import begin_branch, catalog, latest
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.prune import Retention, keep_newest, plan_prune, prune, remove_checkpoint
from engine.ckpt.save import save_checkpoint
from engine.ckpt.store import open_store
from tests.engine.ckpt.state import Ranks, dense, pieces_of, save


@pytest.fixture
def saved(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, 1, 1, dense(torch.float32, step))
    return tmp_path


def fate(root, **rules):
    return {d.step: d.action for d in plan_prune(root, Retention(**rules))}


def test_last_n_stay(saved):
    assert fate(saved, last=2) == {10: "remove", 20: "remove", 30: "keep", 40: "keep"}
    assert fate(saved, last=1, every_steps=20) == {
        10: "remove",
        20: "keep",
        30: "remove",
        40: "keep",
    }


def test_one_per_hours_stays(saved):
    infos = catalog(saved)
    span_h = (infos[-1].created_s - infos[0].created_s) / 3600
    assert fate(saved, last=1, every_h=2 * span_h)[10] == "keep"
    assert fate(saved, last=1, every_h=2 * span_h)[20] == "remove"


def test_planning_changes_nothing_and_pruning_does_what_was_planned(saved):
    plan = plan_prune(saved, Retention(last=1))
    assert len(catalog(saved)) == 4
    assert prune(saved, plan) == ["step-00000010", "step-00000020", "step-00000030"]
    assert [i.name for i in catalog(saved)] == ["step-00000040"]


def test_the_last_valid_one_stays_when_the_newer_are_damaged(saved):
    for step in (20, 30, 40):
        (saved / f"step-{step:08d}" / "rank-00000.safetensors").write_bytes(b"x")
    decisions = {d.step: d for d in plan_prune(saved, Retention(last=1))}
    assert decisions[10].why == "the newest valid one is never removed"
    assert {d.action for d in decisions.values()} == {"keep"}


def test_a_dead_writers_draft_goes_when_its_grace_period_is_over(saved):
    folder, other = saved / "step-00000040", saved / "step-00000041"
    for place in (folder, saved / "notes", other):
        place.mkdir(exist_ok=True)
        (place / "COMMITTED.0123456789ab.draft").write_bytes(b"{}")
    (other / "ATTEMPT").write_bytes(b"{}")
    here = "step-00000040/COMMITTED.0123456789ab.draft"
    now = {d.name: d.action for d in plan_prune(saved, Retention(last=4))}
    assert now[here] == now["step-00000041"] == "keep"
    later = plan_prune(saved, Retention(last=4), now_s=time.time() + 1e6)
    removed = prune(saved, later)
    assert {here, "step-00000041"} <= set(removed)
    assert [info.state for info in catalog(saved)] == ["committed"] * 4
    assert [d.name for d in open_store(saved).uploads()] == ["notes/COMMITTED.0123456789ab.draft"]
    assert not (folder / "COMMITTED.0123456789ab.draft").exists()


def test_nothing_goes_if_what_should_stay_broke_after_planning(saved):
    plan = plan_prune(saved, Retention(last=1))
    (saved / "step-00000040" / "manifest.json").write_bytes(b"{}")
    assert prune(saved, plan) == []


def test_only_dead_attempts_are_orphans(saved):
    for step in (50, 60):
        folder = saved / f"step-{step:08d}"
        folder.mkdir()
        (folder / "rank-00000.safetensors").write_bytes(b"partial")
    import platform

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    note = f'{{"host": "{platform.node()}", "pid": %d}}'
    import os

    (saved / "step-00000050" / "ATTEMPT").write_text(note % os.getpid())
    (saved / "step-00000060" / "ATTEMPT").write_text(note % dead.pid)
    assert fate(saved, last=4) == {
        10: "keep",
        20: "keep",
        30: "keep",
        40: "keep",
        50: "keep",
        60: "remove",
    }
    later = plan_prune(saved, Retention(last=4), now_s=catalog(saved)[-1].created_s + 22000)
    assert {d.step for d in later if d.action == "remove"} == {50, 60}


def test_folders_of_other_programs_stay_however_old(saved):
    # DeepSpeed and others call theirs so too
    foreign = saved / "step-00001000"
    (foreign / "sub").mkdir(parents=True)
    (foreign / "mp_rank_00_model_states.pt").write_bytes(b"x")
    (saved / "step-00002000" / "empty").mkdir(parents=True)
    (saved / "step-00003000").mkdir()  # all that is left of a removal
    late = catalog(saved)[-1].created_s + 1e6
    fates = {d.step: (d.action, d.why) for d in plan_prune(saved, Retention(last=4), now_s=late)}
    assert [fates[step][0] for step in (1000, 2000, 3000)] == ["keep", "keep", "remove"]
    assert "another program" in fates[1000][1]


def test_removal_takes_the_marker_first_and_what_says_whose_it_was_last(saved, monkeypatch):
    store, removed = open_store(saved), []
    monkeypatch.setattr(store, "remove", removed.append)
    monkeypatch.setattr(store, "remove_folder", removed.append)
    remove_checkpoint(store, "step-00000010")
    assert removed[0] == ["step-00000010/COMMITTED"]
    assert removed[2] == "step-00000010"
    assert "step-00000010/manifest.json" in removed[1]
    assert not any("ATTEMPT" in name for name in removed[1])


def test_what_training_went_back_behind_goes_by_hand_only(saved):
    assert begin_branch(open_store(saved), "step-00000020") == ["step-00000030", "step-00000040"]
    assert fate(saved, last=4) == {10: "keep", 20: "keep", 30: "remove", 40: "remove"}
    keep_newest(saved, 1)
    assert [i.step for i in catalog(saved)] == [20, 30, 40]
    assert latest(saved) == saved / "step-00000020"
    assert begin_branch(open_store(saved), "step-00000040") == []
    assert latest(saved) == saved / "step-00000040"


def test_the_trainers_retention(saved):
    keep_newest(saved, 3)
    assert [i.step for i in catalog(saved)] == [20, 30, 40]
    assert keep_newest(saved, 0) == []


def test_the_best_and_the_spikes_are_kept_too(tmp_path):
    losses = {1: 3.0, 2: 1.5, 3: 2.5, 4: 2.0, 5: 2.2}
    for step, loss in losses.items():
        extra = {"val_loss": loss, "why": "loss spike" if step == 3 else "interval"}
        Ranks(1).run(
            lambda rank, gather, step=step, extra=extra: save_checkpoint(
                tmp_path, pieces_of(0, 1, 1, torch.float32, dense(torch.float32, step)),
                meta=CheckpointMeta(step=step, extra=extra), rank=0, world=1, gather=gather,
                barrier=lambda: None,
            )
        )  # fmt: skip
    plan = {d.step: d for d in plan_prune(tmp_path, Retention(last=1, best=2))}
    assert [step for step, d in plan.items() if d.action == "keep"] == [2, 3, 4, 5]
    assert plan[2].why == "number 1 by held-out loss, 1.5"
    assert plan[3].why == "saved for a loss spike"
