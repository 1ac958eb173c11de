"""Files of a spool, and the memory behind its slots."""

import os
import signal
import stat
import subprocess
import sys

import msgspec
import pytest

from engine.ckpt import arena
from engine.ckpt.arena import (
    PAGE,
    CommitJob,
    FlushStatus,
    Peers,
    Spool,
    Ticket,
    check_room,
    holder_of,
    map_slot,
    spool_folder,
)
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.save import Part
from engine.errors import CheckpointError, MissingError


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def ticket(step, state="pending", rank=0):
    return Ticket(
        state=state, root="/r", folder=f"step-{step:08d}", world=2,
        meta=CheckpointMeta(step=step), part=Part(rank=rank),
    )  # fmt: skip


def job(step, attempt=""):
    return CommitJob(
        root="/r", folder=f"step-{step:08d}{attempt}", world=2, meta=CheckpointMeta(step=step),
        created_s=1.0,
    )  # fmt: skip


def test_a_spool_is_its_owners_alone(spool):
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700
    assert spool_folder("r", base=spool.folder).parent == spool.folder
    assert spool_folder("r").name.startswith(f"msctl-{os.getuid()}-")
    assert str(spool_folder("r")).startswith("/dev/shm/")
    assert spool_folder("r", "a") != spool_folder("r", "b")


def test_what_a_stranger_put_in_its_place_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    for name in ("file", "link", "nowhere"):
        with pytest.raises(MissingError, match=name) as caught:
            Spool(tmp_path / name)
        assert f"rm -r {tmp_path / name}" in caught.value.remedy
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(MissingError, match="belongs to user"):
        Spool(tmp_path)


def test_tickets_are_kept_per_rank_and_slot(spool):
    spool.write_ticket(12, 1, ticket(8))
    spool.write_ticket(2, 0, ticket(8, "flushed"))
    assert spool.tickets() == [(2, 0), (12, 1)]
    assert spool.ticket(12, 1) == ticket(8)
    assert spool.ticket(12, 1).step == 8
    assert spool.ticket(12, 0) is None
    spool.write_ticket(12, 1, None)
    spool.write_ticket(12, 1, None)
    assert spool.tickets() == [(2, 0)]
    assert not list(spool.folder.glob("*.draft"))


def test_pending_snapshots_go_by_step_then_rank(spool):
    for rank, slot, step, state in (
        (0, 0, 8, "pending"), (1, 0, 4, "pending"), (0, 1, 4, "pending"), (3, 0, 2, "flushed"),
    ):  # fmt: skip
        spool.write_ticket(rank, slot, ticket(step, state))
    assert spool.pending() == [(0, 1), (1, 0), (0, 0)]


def test_a_torn_ticket_names_the_spool(spool):
    path = spool.folder / "r00000.0.ticket"
    path.write_bytes(msgspec.json.encode(ticket(8))[:-4])
    with pytest.raises(CheckpointError, match=r"r00000\.0\.ticket") as caught:
        spool.ticket(0, 0)
    assert str(spool.folder) in caught.value.remedy


def test_commits_wait_in_order_and_are_done_or_dropped(spool):
    for one in (job(8), job(4, ".2"), job(4)):
        spool.write_job(one.folder, one)
    assert [j.folder for j in spool.jobs()] == ["step-00000004", "step-00000004.2", "step-00000008"]
    spool.write_job("step-00000008", None)
    spool.drop_job("step-00000004.2")
    spool.drop_job("step-00000099")
    assert spool.jobs() == [job(4)]
    assert spool.jobs("dropped") == [job(4, ".2")]
    spool.forget_dropped("step-00000004.2")
    spool.forget_dropped("step-00000004.2")
    assert spool.jobs("dropped") == []


def owner(spool, rank):
    os.close(spool.take(f"r{rank:05d}.owner"))


def test_closed_is_only_where_every_owner_ended_in_order(spool):
    assert not spool.is_closed()
    owner(spool, 0)
    owner(spool, 1)
    spool.mark_closed(0)
    assert not spool.is_closed()
    spool.mark_closed(1)
    assert spool.is_closed()
    spool.mark_closed(1, closed=False)
    spool.mark_closed(1, closed=False)
    assert not spool.is_closed()
    spool.free_if_closed()
    assert spool.folder.exists()
    spool.mark_closed(1)
    spool.free_if_closed()
    assert not spool.folder.exists()


def test_memory_is_not_freed_under_a_flusher_or_over_work(spool):
    owner(spool, 0)
    spool.mark_closed(0)
    flusher = spool.take("flusher")
    spool.free_if_unused()
    os.close(flusher)
    spool.write_ticket(0, 0, ticket(4))
    spool.free_if_unused()
    spool.write_ticket(0, 0, None)
    spool.write_job("step-00000004", job(4))
    spool.free_if_unused()
    assert spool.folder.exists()
    spool.write_job("step-00000004", None)
    spool.free_if_unused()
    assert not spool.folder.exists()


def test_ranks_that_left_the_node_are_forgotten_once_flushed(spool):
    for rank in (0, 1, 2):
        owner(spool, rank)
        spool.image(rank, 0).touch()
        spool.write_ticket(rank, 0, ticket(4, "pending" if rank == 2 else "flushed", rank))
    spool.forget_ranks_but([0])
    left = {path.name.split(".")[0] for path in spool.folder.iterdir()}
    assert left == {"r00000", "r00002"}
    assert spool.image(2, 1).name == "r00002.1.image"


def test_partners_address_and_status_are_passed_on(spool):
    assert (spool.peers(), spool.address(), spool.status()) == (None, "", FlushStatus())
    peers = Peers(secret="s", node="a", to="h:1")
    spool.write_peers(peers)
    before = (spool.folder / "peers.json").stat().st_ino
    spool.write_peers(peers)
    assert (spool.folder / "peers.json").stat().st_ino == before  # nothing new, nothing written
    spool.write_address("h:2")
    spool.write_status(FlushStatus(pid=7, committed_step=4))
    assert spool.peers() == peers
    assert spool.address() == "h:2"
    assert spool.status().committed_step == 4
    spool.forget_address()
    spool.forget_address()
    assert spool.address() == ""


def test_a_lock_is_held_once(spool):
    with spool.hold("x") as had, spool.hold("x") as again, spool.hold("y") as other:
        assert (had, again, other) == (True, False, True)
    with spool.hold("x", wait=True) as had:
        assert had
    with pytest.raises(ZeroDivisionError), spool.hold("x"):
        raise ZeroDivisionError
    with spool.hold("x") as had:
        assert had


HOLD = """
import os, sys, time
from pathlib import Path
from engine.ckpt.arena import Spool
lock = Spool(Path(sys.argv[1])).take("r00003.owner")
print(lock is not None, flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(spool):
    """A process of an earlier start in the place of rank 3."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(spool.folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


def test_a_process_that_stands_still_gives_its_place_up(spool, holder, monkeypatch):
    monkeypatch.setattr(arena, "_STILL_S", 0.1)
    os.kill(holder.pid, signal.SIGSTOP)
    os.close(spool.take_owner(3, within_s=20))
    assert holder.wait() == -signal.SIGKILL


def test_a_process_that_runs_is_waited_for_and_named(spool, holder):
    with pytest.raises(MissingError) as error:
        spool.take_owner(3, within_s=0.1)
    assert f"process {holder.pid} (state S)" in error.value.what
    assert "rank 3" in error.value.what
    assert holder.poll() is None
    os.close(spool.take_owner(2, within_s=0.0))
    holder.kill()
    os.close(spool.take_owner(3, within_s=20))


def test_what_cannot_be_seen_of_a_lock_is_no_error(spool, tmp_path):
    assert holder_of(tmp_path / "absent") == 0
    with spool.hold("x"):
        assert holder_of(spool.folder / "x.lock") == os.getpid()
    assert holder_of(spool.folder / "x.lock") == 0


@pytest.mark.parametrize(("size", "pages"), [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_a_slot_is_whole_pages_and_shared(tmp_path, size, pages):
    memory = map_slot(tmp_path / "image", size, create=True)
    assert len(memory) == pages * PAGE
    memory[-1:] = b"x"
    again = map_slot(tmp_path / "image", size, create=False)
    assert again[-1:] == b"x"
    assert stat.S_IMODE((tmp_path / "image").stat().st_mode) == 0o600


def test_a_slot_takes_another_size_only_from_its_owner(tmp_path):
    path = tmp_path / "image"
    with pytest.raises(FileNotFoundError):
        map_slot(path, 1, create=False)
    map_slot(path, 3 * PAGE, create=True)
    assert len(map_slot(path, PAGE, create=False)) == PAGE
    map_slot(path, PAGE, create=True)
    with pytest.raises(CheckpointError, match=f"{PAGE} bytes instead of {2 * PAGE}"):
        map_slot(path, 2 * PAGE, create=False)


def test_room_is_what_memory_and_file_system_have_and_old_slots_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "open", lambda *a, **k: (tmp_path / "meminfo").open(), raising=False)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  100 kB\n")
    (tmp_path / "r00000.0.image").write_bytes(bytes(1000))
    check_room(tmp_path, 100 * 1024 + 1000)
    with pytest.raises(MissingError, match="need"):
        check_room(tmp_path, 100 * 1024 + 1001)
    (tmp_path / "meminfo").write_text(f"MemAvailable: {1 << 60} kB\n")
    disk = os.statvfs(tmp_path)
    with pytest.raises(MissingError, match="are free"):
        check_room(tmp_path, disk.f_blocks * disk.f_frsize + 1001)
