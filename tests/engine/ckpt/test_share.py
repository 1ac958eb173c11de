import threading

import pytest
import torch

import engine.ckpt.restore
import engine.ckpt.save
from engine.ckpt.piece import Piece
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.share import Share, split_pieces
from engine.ckpt.store import open_store
from tests.engine.ckpt.state import Ranks, dense, pieces_of, save
from tests.engine.ckpt.test_hf_export import LLAMA, as_pieces, checkpoint, weights

CHUNK = 512


class CountingStore:
    """Counts the bytes of shard files that are read."""

    def __init__(self, store):
        self.store, self.url, self.bytes, self.lock = store, store.url, 0, threading.Lock()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def read(self, name, offset, views):
        with self.lock:
            self.bytes += sum(len(view) for view in views)
        self.store.read(name, offset, views)


class Group:
    """Broadcast between ranks that are threads."""

    def __init__(self, size):
        self.wall, self.box = threading.Barrier(size), [None]

    def broadcast(self, index):
        def run(tensor, source):
            if index == source:
                self.box[0] = tensor.clone()
            self.wall.wait()
            tensor.copy_(self.box[0])
            self.wall.wait()

        return run


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_replicas_read_each_byte_of_the_store_once(tmp_path, monkeypatch, replicas):
    monkeypatch.setattr(engine.ckpt.save, "CHUNK_BYTES", CHUNK)
    tensors = weights(LLAMA) | {"embed.weight": torch.randn(1024, 256)}
    checkpoint(tmp_path, LLAMA, tensors)
    store = CountingStore(open_store(tmp_path))
    monkeypatch.setattr(engine.ckpt.restore, "open_root", lambda where: store)
    group = Group(replicas)

    def work(rank, gather):
        got = {name: torch.zeros_like(t) for name, t in tensors.items()}
        share = Share(rank, replicas, group.broadcast(rank))
        load_checkpoint(tmp_path, as_pieces(got), gather=gather, share=share)
        return got

    for got in Ranks(replicas).run(work):
        assert all(torch.equal(got[name], t) for name, t in tensors.items())
    unique = sum(t.numel() * 4 for t in tensors.values())
    assert 1.0 <= store.bytes / unique <= 1.02


def test_parts_are_equal_and_cover_every_element():
    flat = torch.arange(31.0)
    pieces = [
        Piece(name=str(i), slot="param", global_shape=(n,), box=((0, n),), flat=(0, n),
              tensor=flat[:n])
        for i, n in enumerate((31, 1, 7))
    ]  # fmt: skip
    parts = split_pieces(pieces, 4)
    assert [sum(p.region.size for p in part) for part in parts] == [9, 10, 10, 10]
    held = [(p.name, k) for part in parts for p in part for k in range(*p.flat)]
    assert sorted(held) == sorted((str(i), k) for i, n in enumerate((31, 1, 7)) for k in range(n))
    assert all(p.tensor[0] == p.flat[0] for part in parts for p in part)


def test_ranks_that_hold_different_pieces_read_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(engine.ckpt.save, "CHUNK_BYTES", 64)
    save(tmp_path, 1, 2, 2, dense(torch.float32))
    store = CountingStore(open_store(tmp_path))
    monkeypatch.setattr(engine.ckpt.restore, "open_root", lambda where: store)
    for rank in range(4):
        load_checkpoint(tmp_path, pieces_of(rank, 2, 2, torch.float32))
    unique = sum(t.numel() * 4 for t in dense(torch.float32).values())
    assert store.bytes / unique < 1.6, "edges of 64-byte chunks only"
