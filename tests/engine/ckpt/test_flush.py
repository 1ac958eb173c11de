"""One round of a flusher at a time: parts, commits, what fails and what is lost."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch

from engine.ckpt import flush
from engine.ckpt.arena import Peers, Spool
from engine.ckpt.catalog import describe, read_manifest, step_folders
from engine.ckpt.flush import FlushOptions, drain, open_wake
from engine.ckpt.partner import PEERS
from engine.ckpt.parts import already_there
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.save import Part
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from tests.engine.ckpt.node import QUICK, Node
from tests.engine.ckpt.state import dense, pieces_of

F32 = torch.float32


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def holds(node, step):
    pieces = pieces_of(0, 1, 1, F32)
    load_checkpoint(f"{node.root}/step-{step:08d}", pieces)
    want = pieces_of(0, 1, 1, F32, dense(F32, seed=step))
    return all(torch.equal(p.tensor, w.tensor) for p, w in zip(pieces, want, strict=True))


def test_a_snapshot_becomes_a_checkpoint_and_leaves_no_parts(node):
    node.save(8)
    assert node.round() is True
    assert holds(node, 8)
    assert verify(f"{node.root}/step-00000008").ok
    assert not [name for name in node.files(8) if name.startswith("part-")]
    status = node.spool.status()
    assert (status.committed_step, status.committed, status.failures) == (8, "step-00000008", 0)
    assert (status.error, status.writing) == ("", "")
    assert node.spool.jobs() == []
    assert [node.spool.ticket(rank, 0).state for rank in range(2)] == ["flushed", "flushed"]
    assert node.round() is False


def test_no_part_missing_is_committed(node):
    node.snapshot(8, 0)
    node.job(8)
    assert node.round() is True
    assert node.files(8) == ["part-00000.json", "rank-00000.safetensors"]
    assert node.round() is False
    assert [job.folder for job in node.spool.jobs()] == ["step-00000008"]
    node.snapshot(8, 1)
    assert node.round() is True
    assert holds(node, 8)


def test_a_ticket_gets_the_digests_of_what_was_written(node):
    node.snapshot(8, 1)
    node.round()
    part = node.spool.ticket(1, 0).part
    announced = msgspec.json.decode(
        node.store.get("step-00000008/part-00001.json", 1 << 20), type=Part
    )
    assert part == announced
    assert len(part.file.digests) == 32 * part.file.chunks
    assert node.spool.status().done_bytes == node.spool.status().total_bytes == part.file.bytes


def test_a_slot_in_use_is_left_alone(node):
    node.snapshot(8, 0)
    with node.spool.hold("r00000.0"):
        assert node.round() is False
    assert node.spool.ticket(0, 0).state == "pending"
    assert node.round() is True


def test_ranks_are_flushed_side_by_side(node):
    node.save(8)
    with ThreadPoolExecutor(2) as pool:
        node.flusher.round(pool.map)
    assert holds(node, 8)


def test_a_slot_that_was_made_anew_is_mapped_anew(node):
    node.snapshot(4, 0)
    node.round()
    node.spool.image(0, 0).unlink()
    node.save(8)
    node.round()
    assert holds(node, 8)


def refuse(*args, **more):
    raise CheckpointError("the store is away", remedy="wait")


def test_a_store_that_is_away_is_tried_again_ever_more_rarely(node, monkeypatch, caplog):
    clock = [100.0]
    monkeypatch.setattr(flush.time, "monotonic", lambda: clock[0])
    node.save(8)
    store = node.flusher._store(node.root)
    monkeypatch.setattr(store, "put_image", refuse)
    tries = []
    for tick in range(12):
        clock[0] = 100.0 + tick / 100
        before = node.spool.status().failures
        node.round()
        if node.spool.status().failures > before:
            tries.append(tick)
    assert tries == [0, 1, 3, 6, 9]  # after 1, 2, 3 and again 3 hundredths
    assert "next try in 0.0 s" in caplog.text
    assert node.spool.status().error == "the store is away"
    monkeypatch.undo()
    monkeypatch.setattr(flush.time, "monotonic", lambda: 200.0)
    node.round()
    assert holds(node, 8)
    assert node.flusher._delay == {}


def test_a_commit_that_fails_is_tried_again(node, monkeypatch):
    node.save(8)
    store = node.flusher._store(node.root)
    monkeypatch.setattr(store, "create", refuse)
    node.round()
    assert node.spool.status().error == "the store is away"
    assert len(node.spool.jobs()) == 1
    monkeypatch.undo()
    node.round()
    assert holds(node, 8)
    assert node.spool.status().error == ""


def test_what_the_store_lost_is_written_again_from_memory(node):
    node.save(8)
    job = node.spool.jobs()[0]
    node.spool.write_job(job.folder, None)
    node.round()
    node.store.remove_folder("step-00000008")
    node.spool.write_job(job.folder, job)
    node.round()  # finds the parts gone
    assert {node.spool.ticket(rank, 0).state for rank in range(2)} == {"pending"}
    node.round()
    assert holds(node, 8)


def test_a_file_that_was_lost_after_its_part_is_written_again(node):
    job = node.save(8)
    node.spool.write_job(job.folder, None)
    node.round()
    node.store.remove(["step-00000008/rank-00001.safetensors"])
    node.spool.write_job(job.folder, job)
    node.round()
    assert "rank-00001.safetensors" in node.spool.status().error
    node.round()
    assert holds(node, 8)


def test_another_flushers_work_is_not_done_twice(node, monkeypatch):
    for rank in range(2):
        node.snapshot(8, rank)
    node.round()
    flushed = [node.spool.ticket(rank, 0) for rank in range(2)]
    for rank in range(2):
        node.snapshot(8, rank)
    monkeypatch.setattr(node.flusher._store(node.root), "put_image", refuse)
    node.round()
    assert [node.spool.ticket(rank, 0) for rank in range(2)] == flushed
    node.job(8)
    node.round()
    pending = node.snapshot(8, 0)  # the parts are gone by now, the manifest tells
    assert (
        already_there(node.store, pending).file
        == read_manifest(node.store, "step-00000008").files[0]
    )


def test_only_the_newest_are_kept(node):
    for step in (2, 4, 6):
        node.save(step, keep=2)
        node.round()
    assert step_folders(node.store) == ["step-00000004", "step-00000006"]


def test_a_commit_that_was_overtaken_long_ago_is_given_up(node):
    node.job(2, created_s=time.time() - flush.OVERTAKEN_S - 9)
    node.job(3)
    node.job(9, created_s=1.0)
    node.store.put("step-00000002/rank-00000.safetensors", [memoryview(b"x")])
    node.save(4)
    node.round()
    assert [job.meta.step for job in node.spool.jobs()] == [3, 9]
    assert [job.meta.step for job in node.spool.jobs("dropped")] == [2]
    node.round()
    assert node.files(2) == []
    assert node.spool.jobs("dropped") == []
    assert describe(node.store, "step-00000004").state == "committed"


def test_a_folder_that_cannot_be_removed_now_is_removed_later(node, monkeypatch):
    node.job(2)
    node.spool.drop_job("step-00000002")
    store = node.flusher._store(node.root)
    monkeypatch.setattr(store, "remove_folder", refuse)
    node.round()
    assert len(node.spool.jobs("dropped")) == 1
    assert node.spool.status().failures == 1
    monkeypatch.undo()
    node.round()
    assert node.spool.jobs("dropped") == []


def test_it_goes_on_while_there_is_hope_or_a_trainer(node):
    assert node.flusher._hopeless()
    node.job(8, created_s=time.time() - flush.GIVE_UP_S - 9)
    assert node.flusher._hopeless()
    node.snapshot(9, 0)
    assert not node.flusher._hopeless()
    node.spool.write_ticket(0, 0, None)
    node.job(9)
    assert not node.flusher._hopeless()
    assert not node.flusher._owned()
    owner = node.spool.take("r00001.owner")
    assert node.flusher._owned()
    os.close(owner)
    assert not node.flusher._owned()


def test_its_loop_ends_when_all_is_written(node):
    node.save(8)
    node.flusher.run()
    assert holds(node, 8)
    assert node.spool.status().pid == os.getpid()


def test_a_store_that_takes_nothing_is_given_up_when_the_trainer_is_long_gone(
    tmp_path, monkeypatch, caplog
):
    node = Node(tmp_path, msgspec.structs.replace(QUICK, alone_s=0.2))
    node.save(8)
    monkeypatch.setattr(node.flusher._store(node.root), "put_image", refuse)
    node.flusher.run()
    assert "given up: the store is away" in caplog.text
    assert node.spool.pending() == [(0, 0), (1, 0)]  # a restart finds it in memory


def test_writing_is_no_faster_than_allowed(tmp_path, monkeypatch):
    node = Node(tmp_path, FlushOptions(bytes_per_s=1000.0))
    clock, slept = [50.0], []
    monkeypatch.setattr(flush.time, "monotonic", lambda: clock[0])

    def sleep(seconds):
        slept.append(round(seconds, 6))
        clock[0] += seconds

    monkeypatch.setattr(flush.time, "sleep", sleep)
    for size in (500, 500, 2000):
        node.flusher._pace(size)
    assert slept == [0.4, 0.5, 2.0]  # a tenth of a second may be owed
    clock[0] += 60
    node.flusher._pace(100)
    assert slept == [0.4, 0.5, 2.0]  # idle time is not saved up: no more than that tenth
    node.flusher._pace(100)
    assert slept[3:] == [0.1]


def test_a_call_wakes_once_and_is_forgotten(tmp_path):
    spool = Spool(tmp_path)
    wake, again = open_wake(spool), open_wake(spool)
    os.write(again, b"xxx")
    assert flush.select.select([wake], [], [], 0)[0] == [wake]
    drain(wake)
    assert flush.select.select([wake], [], [], 0)[0] == []
    drain(wake)
    os.close(wake)
    os.close(again)


def test_a_copy_goes_to_the_partner_once_and_only_if_there_is_one(node, monkeypatch):
    sent = []
    monkeypatch.setattr(flush, "push", lambda to, *rest: sent.append((to, rest[2].rank)))
    partner, ticket = node.flusher._partner, node.snapshot(8, 1)
    partner.copy(ticket, 1, 0)
    partner._peers = Peers(secret="s", node="a")
    partner.copy(ticket, 1, 0)
    assert sent == []
    assert not partner.is_wanted()
    partner._peers = Peers(secret="s", node="a", to="b:1")
    partner.copy(ticket, 1, 0)
    partner.copy(ticket, 1, 0)
    assert sent == [("b:1", 1)]
    partner.copy(node.snapshot(9, 1), 1, 0)
    assert len(sent) == 2


def test_a_partner_that_does_not_answer_is_not_waited_for(node, monkeypatch, caplog):
    tried, slept = [], []

    def push(*rest):
        tried.append(rest)
        raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(flush, "push", push)
    monkeypatch.setattr(flush.time, "sleep", slept.append)
    partner = node.flusher._partner
    partner._peers = Peers(secret="s", node="a", to="b:1")
    partner.copy(node.snapshot(8, 0), 0, 0)
    assert (len(tried), len(slept)) == (3, 2)
    assert caplog.text.count("no copy on another node") == 1
    node.round()
    assert node.spool.ticket(0, 0).state == "flushed"


def test_two_nodes_keep_each_others_snapshots(tmp_path):
    here, there = Node(tmp_path / "a"), Node(tmp_path / "b")
    there.spool.write_peers(Peers(secret="s", node="b", source="a"))
    there.round()
    here.spool.write_peers(Peers(secret="s", node="a", to=there.spool.address()))
    ticket = here.snapshot(8, 1)
    here.round()
    copies = Spool(there.spool.folder / PEERS / "a")
    assert copies.ticket(1, 0).folder == ticket.folder
    size = ticket.part.file.bytes
    assert copies.image(1, 0).read_bytes()[:size] == here.spool.image(1, 0).read_bytes()[:size]
    for node in (here, there):
        node.flusher._partner._server.close()


def test_copies_are_served_for_the_time_of_a_restart_or_until_the_end(node, monkeypatch):
    partner = node.flusher._partner
    assert not partner.is_wanted()
    node.spool.write_peers(Peers(secret="s", node="a"))
    node.round()
    assert node.spool.address() == partner._server.address
    assert partner.is_wanted()
    monkeypatch.setattr(flush.time, "monotonic", lambda: partner._began + flush.LINGER_S)
    assert not partner.is_wanted()
    monkeypatch.setattr(flush.time, "monotonic", lambda: partner._began + flush.LINGER_S - 1)
    os.close(node.spool.take("r00000.owner"))
    assert partner.is_wanted()
    node.spool.mark_closed(0)
    assert not partner.is_wanted()
    partner._server.close()


def test_of_two_runs_that_write_one_step_the_second_loses_and_says_so(node, tmp_path):
    other = Node(tmp_path / "other", root=node.root)
    node.save(8, owner="ours")
    node.round()
    other.save(8, seed=80, owner="theirs")
    assert other.round() is False
    status = other.spool.status()
    assert "another run writes a checkpoint of this step" in status.error
    assert (status.committed_step, status.failures) == (-1, 3)  # two parts and the commit
    assert [other.spool.ticket(rank, 0).state for rank in range(2)] == ["pending", "pending"]
    other.spool.drop_job("step-00000008")
    other.round()
    assert other.spool.jobs("dropped") == []
    assert holds(node, 8)


def test_a_commit_of_another_run_is_not_reported_as_ours(node, tmp_path):
    other = Node(tmp_path / "other", root=node.root)
    node.save(8, owner="ours")
    node.round()
    other.job(8, owner="theirs")
    other.round()
    assert other.spool.status().committed_step == -1


def test_a_torn_marker_is_written_anew(node):
    node.save(8, owner="ours")
    for rank in range(2):
        node.flusher._flush_one((rank, 0))
    node.store.put("step-00000008/COMMITTED", [memoryview(b"")])
    node.round()
    assert holds(node, 8)


@pytest.mark.slow
def test_what_a_user_must_know_of_the_store_is_in_the_status(node):
    node.store.caution = "give every run a path of its own"
    node.flusher.stores[node.root] = node.store
    node.save(8, owner="ours")
    node.round()
    assert node.spool.status().caution == "give every run a path of its own"
