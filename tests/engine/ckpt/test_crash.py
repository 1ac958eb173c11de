"""A fault at every operation of every role: trainer, flusher, committer, prune."""

import contextlib
import uuid

import pytest
import torch

import engine.ckpt.prune
import engine.ckpt.save
from engine.ckpt.arena import Spool
from engine.ckpt.catalog import catalog
from engine.ckpt.flush import Flusher, FlushOptions
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.prune import Retention, plan_prune, prune
from engine.ckpt.store import open_store
from engine.ckpt.two_stage import TwoStage
from engine.errors import CheckpointError
from tests.engine.ckpt.faulty import FAULTS, FaultyStore, Killed, judge
from tests.engine.ckpt.state import Ranks, dense, pieces_of, save

pytestmark = pytest.mark.slow

WORLD = 2
MARKED = [pytest.param(f, marks=[pytest.mark.slow] * (f in ("half", "after"))) for f in FAULTS]
OPTIONS = FlushOptions(threads=1, retry_first_s=0.001)


def roots(tmp_path):
    """A local folder and an object store in memory, fresh for every point."""
    local = tmp_path / uuid.uuid4().hex
    return str(local), f"memory://{uuid.uuid4().hex}/ckpt"


def sweep(run, tmp_path, fault):
    """Call `run(root, at)` for every operation number until it reports that none was hit."""
    kind = 0 if fault in ("before", "half") else 1
    points = 0
    while run(roots(tmp_path)[kind], points):
        points += 1
    assert points >= 4, "the sweep must have had something to break"


@pytest.mark.parametrize("fault", MARKED)
def test_a_save_in_step_survives_every_fault(tmp_path, monkeypatch, fault):
    def run(root, at):
        save(root, 1, 1, WORLD, dense(torch.float32, 1))
        store = FaultyStore(open_store(root), at, fault)
        committed = {1}
        with monkeypatch.context() as patch:
            patch.setattr(engine.ckpt.save, "open_store", lambda where: store)
            try:
                save(root, 2, 1, WORLD, dense(torch.float32, 2))
                committed.add(2)
            except (Killed, CheckpointError):
                pass
        judge(root, committed)
        save(root, 3, 1, WORLD, dense(torch.float32, 3))
        judge(root, committed | {3})
        return store.count > at

    sweep(run, tmp_path, fault)


def snapshot(root, spool, steps, monkeypatch):
    """Two ranks leave snapshots in a spool; nobody flushes them."""
    monkeypatch.setattr(TwoStage, "_ensure_flusher", lambda self: None)

    def work(rank, gather):
        pieces = pieces_of(rank, 1, WORLD, torch.float32, dense(torch.float32, steps[0]))
        two = TwoStage(root, pieces, rank=rank, world=WORLD, gather=gather, spool=spool)
        for step in steps:
            now = pieces_of(rank, 1, WORLD, torch.float32, dense(torch.float32, step))
            for piece, fresh in zip(pieces, now, strict=True):
                piece.tensor.copy_(fresh.tensor)
            taken = two.save(pieces, CheckpointMeta(step=step))
            for piece in pieces:
                piece.tensor.zero_()
        two.close()
        return taken

    return Ranks(WORLD).run(work)


def flush(spool, root, store):
    """Run a flusher in this process until nothing is left or it dies; returns what it committed."""
    flusher = Flusher(Spool(spool), OPTIONS)
    flusher.stores[root] = store
    try:
        for _ in range(20):
            flusher._not_before.clear()
            flusher.round(map)
            if not flusher.spool.pending() and not flusher.spool.jobs():
                break
    except Killed:
        pass
    return {flusher.status.committed_step} - {-1}


@pytest.mark.parametrize("fault", MARKED)
def test_a_killed_flusher_finishes_after_restart(tmp_path, monkeypatch, fault):
    def run(root, at):
        spool = tmp_path / uuid.uuid4().hex
        snapshot(root, spool, [5, 6], monkeypatch)
        store = FaultyStore(open_store(root), at, fault)
        committed = flush(spool, root, store)
        judge(root, committed)
        flush(spool, root, open_store(root))
        assert judge(root, committed | {6}) == {5, 6}
        return store.count > at

    sweep(run, tmp_path, fault)


@pytest.mark.parametrize("fault", MARKED)
def test_a_killed_prune_leaves_enough(tmp_path, monkeypatch, fault):
    def run(root, at):
        for step in (1, 2, 3):
            save(root, step, 1, WORLD, dense(torch.float32, step))
        store = FaultyStore(open_store(root), at, fault)
        plan = plan_prune(root, Retention(last=1))
        with monkeypatch.context() as patch:
            patch.setattr(engine.ckpt.prune, "open_root", lambda where: store)
            with contextlib.suppress(Killed, CheckpointError):
                prune(root, plan)
        judge(root, {3})
        later = plan_prune(root, Retention(last=1), now_s=catalog(root)[-1].created_s + 1e6)
        prune(root, later)
        assert [info.step for info in catalog(root)] == [3]
        return store.count > at

    sweep(run, tmp_path, fault)


def test_a_slow_store_drops_the_older_snapshot_and_says_so(tmp_path, monkeypatch, caplog):
    root, spool = str(tmp_path / "root"), tmp_path / "spool"
    taken = snapshot(root, spool, [1, 2, 3, 4], monkeypatch)
    assert [t.dropped_step for t in taken] == [2, 2]
    assert "step 1 gives way" in caplog.text
    assert flush(spool, root, open_store(root)) == {4}
    assert judge(root, {3, 4}) == {3, 4}
    assert [info.step for info in catalog(root)] == [3, 4]
