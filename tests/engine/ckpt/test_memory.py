import shutil

import torch

from engine.ckpt.memory import load_from_memory
from engine.ckpt.store import open_store
from tests.engine.ckpt.state import Ranks, dense, pieces_of
from tests.engine.ckpt.test_crash import WORLD, flush, snapshot


def restore(root, spool, tp=1, dp=WORLD):
    def work(rank, gather):
        pieces = pieces_of(rank, tp, dp, torch.float32)
        return load_from_memory(root, pieces, gather=gather, spool=spool), pieces

    return Ranks(tp * dp).run(work)


def test_a_restarted_run_takes_its_newest_snapshot_from_memory(tmp_path, monkeypatch):
    root, spool = tmp_path / "root", tmp_path / "spool"
    snapshot(str(root), spool, [5, 6], monkeypatch)
    for flushed in (False, True):
        if flushed:
            flush(spool, str(root), open_store(root))
            shutil.rmtree(root)  # the store is not needed
        for rank, (meta, pieces) in enumerate(restore(root, spool)):
            assert meta.step == 6
            want = pieces_of(rank, 1, WORLD, torch.float32, dense(torch.float32, 6))
            assert all(torch.equal(p.tensor, w.tensor) for p, w in zip(pieces, want, strict=True))


def test_another_layout_or_a_damaged_image_goes_to_the_store(tmp_path, monkeypatch, caplog):
    root, spool = tmp_path / "root", tmp_path / "spool"
    assert [meta for meta, _ in restore(root, spool)] == [None, None]
    snapshot(str(root), spool, [5, 6], monkeypatch)
    flush(spool, str(root), open_store(root))
    assert [meta for meta, _ in restore(root, spool, tp=2, dp=1)] == [None, None]
    image = spool / "r00001.1.image"
    data = bytearray(image.read_bytes())
    data[4500] ^= 1
    image.write_bytes(data)
    assert [meta.step for meta, _ in restore(root, spool)] == [5, 5]
    assert "step 6 in memory is damaged" in caplog.text


def test_a_rank_that_owns_nothing_goes_along_with_the_others(tmp_path, monkeypatch):
    """Also on a node that has nothing in memory: what it holds are copies."""
    root, spool = tmp_path / "root", tmp_path / "spool"
    snapshot(str(root), spool, [5, 6], monkeypatch)

    def work(rank, gather):
        owner = rank < WORLD
        pieces = pieces_of(rank, 1, WORLD, torch.float32) if owner else []
        place = spool if owner else tmp_path / "elsewhere"
        return load_from_memory(root, pieces, gather=gather, spool=place)

    assert [meta.step for meta in Ranks(WORLD + 1).run(work)] == [6] * (WORLD + 1)


def test_a_node_without_memory_is_named_by_what_its_ranks_lack(tmp_path, monkeypatch, caplog):
    root, spool = tmp_path / "root", tmp_path / "spool"
    snapshot(str(root), spool, [5, 6], monkeypatch)

    def work(rank, gather):
        place = spool if rank else tmp_path / "elsewhere"
        pieces = pieces_of(rank, 1, WORLD, torch.float32)
        return load_from_memory(root, pieces, gather=gather, spool=place)

    assert Ranks(WORLD).run(work) == [None] * WORLD
    assert "no snapshot is whole in memory: this rank has [] of [] here" in caplog.text
