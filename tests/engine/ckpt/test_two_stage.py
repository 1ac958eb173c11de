import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.ckpt.arena import Spool, map_slot, spool_folder
from engine.ckpt.catalog import catalog
from engine.ckpt.flush import FlushOptions
from engine.ckpt.leftovers import finish_leftovers
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import Piece
from engine.ckpt.prune import remove_checkpoint
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.store import open_store
from engine.ckpt.two_stage import TwoStage, _SlotView, choose_slot
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from tests.engine.ckpt.faulty import judge
from tests.engine.ckpt.state import dense, pieces_of


def views(*pairs):
    return [_SlotView(states=tuple(s), steps=tuple(n)) for s, n in pairs]


@pytest.mark.parametrize(
    ("ranks", "slot"),
    [
        (views((["free", "free"], [-1, -1])), 0),
        (views((["free", "free"], [8, 4])), 1),  # keep the newest snapshot
        (views((["busy", "free"], [4, 8])), 1),
        (views((["busy", "pending"], [4, 8])), 1),  # the waiting one gives way
        (views((["pending", "pending"], [4, 8])), 0),  # the older one gives way
        (views((["free", "pending"], [4, 8]), (["busy", "pending"], [4, 8])), 1),
        (views((["pending", "busy"], [4, 8]), (["free", "pending"], [4, 8])), None),
        (views((["busy", "busy"], [4, 8])), None),
    ],
)
def test_all_ranks_choose_a_slot_that_none_is_writing(ranks, slot):
    assert choose_slot(ranks) == slot


def test_a_spool_is_found_again_by_run_and_node():
    assert spool_folder("s3://b/r") == spool_folder("s3://b/r")
    assert (
        len({spool_folder("s3://b/r"), spool_folder("s3://b/q"), spool_folder("s3://b/r", 1)}) == 3
    )


def test_locks_die_with_their_holder(tmp_path):
    spool = Spool(tmp_path)
    lock = spool.take("x")
    with spool.hold("x") as had:
        assert not had
    os.close(lock)
    with spool.hold("x") as had:
        assert had


def test_slots_keep_their_content_and_refuse_a_wrong_size(tmp_path):
    memory = map_slot(tmp_path / "image", 5000, create=True)
    memory[:3] = b"abc"
    memory.close()
    assert map_slot(tmp_path / "image", 5000, create=False)[:3] == b"abc"
    with pytest.raises(CheckpointError, match="8192 bytes instead of"):
        map_slot(tmp_path / "image", 90000, create=False)


TRAINER = """
import sys, time, torch
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.two_stage import TwoStage
from tests.engine.ckpt.state import dense, pieces_of
root, spool, rate = sys.argv[1:]
from pathlib import Path
from engine.ckpt.flush import FlushOptions
pieces = pieces_of(0, 1, 1, torch.float32, dense(torch.float32, 7))
two = TwoStage(root, pieces, rank=0, world=1, gather=lambda item: [item], spool=Path(spool),
               options=FlushOptions(bytes_per_s=float(rate)))
two.save(pieces, CheckpointMeta(step=7))
print("saved", flush=True)
time.sleep(60)
"""


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def start_trainer(tmp_path, rate):
    arguments = [str(tmp_path / "root"), str(tmp_path / "spool"), str(rate)]
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, *arguments], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert trainer.stdout.readline() == "saved\n"
    return trainer


@pytest.mark.multi
def test_the_flusher_commits_what_a_killed_trainer_left_and_the_memory_stays(tmp_path):
    trainer = start_trainer(tmp_path, 8000)
    trainer.kill()
    trainer.wait()
    wait_for(lambda: any(i.state == "committed" for i in catalog(tmp_path / "root")))
    assert judge(tmp_path / "root", {7}, dp=1) == {7}
    wait_for(lambda: Spool(tmp_path / "spool").status().committed_step == 7)
    assert Spool(tmp_path / "spool").ticket(0, 0).state == "flushed"


@pytest.mark.multi
def test_a_killed_flusher_is_started_again_and_finishes(tmp_path):
    trainer = start_trainer(tmp_path, 2000)
    spool = Spool(tmp_path / "spool")
    wait_for(lambda: spool.status().pid)
    os.kill(spool.status().pid, signal.SIGKILL)
    assert not judge(tmp_path / "root", set(), dp=1)
    trainer.kill()
    trainer.wait()
    status = finish_leftovers(tmp_path / "root", spool=tmp_path / "spool")
    assert status.committed_step == 7
    assert judge(tmp_path / "root", {7}, dp=1) == {7}, "there before the new run loads"
    pieces = pieces_of(0, 1, 1, torch.float32, dense(torch.float32, 8))
    two = TwoStage(
        tmp_path / "root", pieces, rank=0, world=1, gather=lambda item: [item],
        spool=tmp_path / "spool", options=FlushOptions(),
    )  # fmt: skip
    assert two.save(pieces, CheckpointMeta(step=8)).folder == "step-00000008"
    assert two.wait(120)
    assert judge(tmp_path / "root", {7, 8}, dp=1) == {7, 8}
    two.close()
    wait_for(lambda: not (tmp_path / "spool").exists())


@pytest.mark.multi
def test_a_store_that_cannot_be_written_stops_nothing_and_is_reported(tmp_path):
    (tmp_path / "root").write_text("a file where a folder should be")
    pieces = pieces_of(0, 1, 1, torch.float32, dense(torch.float32, 1))
    two = TwoStage(
        tmp_path / "root", pieces, rank=0, world=1, gather=lambda item: [item],
        spool=tmp_path / "spool", options=FlushOptions(retry_first_s=0.02, retry_most_s=0.05),
    )  # fmt: skip
    for step in range(1, 6):
        taken = two.save(pieces, CheckpointMeta(step=step))
        assert taken.seconds < 5
    wait_for(lambda: two.status().failures >= 2)
    # which call meets the file first is a matter of chance; each names it
    reasons = ("Not a directory", "exists", "is a file, so nothing can be written below it")
    assert any(reason in two.status().error for reason in reasons), two.status().error
    (tmp_path / "root").unlink()
    assert two.wait(120), two.status()
    # which of the two was tried again first, and so committed first, is a matter of chance
    steps = {i.step for i in catalog(tmp_path / "root") if i.state == "committed"}
    assert 5 in steps
    assert steps <= {4, 5}
    two.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "msctl-test", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.multi
def test_five_saves_that_do_not_fit_leave_nothing_but_what_was_committed(tmp_path, small_disk):
    """Each takes 6 MiB of 16: two fit, five more fail in a row, and training is never held up."""
    root = small_disk / "root"
    tensor = torch.zeros(3 << 19, dtype=torch.float32)
    piece = Piece(name="w", slot="param", global_shape=tensor.shape, box=((0, len(tensor)),),
                  flat=(0, len(tensor)), tensor=tensor)  # fmt: skip
    two = TwoStage(
        root, [piece], rank=0, world=1, gather=lambda item: [item], spool=tmp_path / "spool",
        options=FlushOptions(retry_first_s=0.02, retry_most_s=0.05),
    )  # fmt: skip

    def save(step):
        tensor.fill_(step)
        return two.save([piece], CheckpointMeta(step=step))

    for step in (1, 2):
        save(step)
        assert two.wait(120)
    for step in range(3, 8):
        failures = two.status().failures
        assert save(step).seconds < 5
        wait_for(lambda seen=failures: two.status().failures >= seen + 2)
    assert "No space left on device" in two.status().error
    wait_for(lambda: len(list(root.iterdir())) <= 4)  # two whole ones and the two that still wait
    assert [info.step for info in catalog(root) if info.state == "committed"] == [1, 2]
    assert sum(f.stat().st_size for f in root.rglob("*") if f.is_file()) < 13 << 20
    assert verify(root / "step-00000002").ok
    for name in ("step-00000001", "step-00000002"):
        remove_checkpoint(open_store(root), name)
    # Two wait and have room now: the newest, and one that was being tried whenever another came.
    assert two.wait(120), two.status()
    steps = [info.step for info in catalog(root) if info.state == "committed"]
    assert len(steps) == 2
    assert 7 in steps
    assert {info.state for info in catalog(root)} == {"committed"}
    two.close()
    assert verify(root / "step-00000007").ok
    got = torch.empty_like(tensor)
    load_checkpoint(root, [dataclasses.replace(piece, tensor=got)])
    assert torch.equal(got, torch.full_like(got, 7.0))
