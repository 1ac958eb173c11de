import threading

import pytest
import torch

import engine.ckpt.restore
import engine.ckpt.save
import engine.ckpt.share
from engine.ckpt.manifest import FileEntry
from engine.ckpt.reading import Job
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.share import Share, direct_is_faster, rounds_of
from engine.ckpt.store import open_store
from engine.errors import CheckpointError
from tests.engine.ckpt.state import Ranks, dense, pieces_of, save
from tests.engine.ckpt.test_hf_export import LLAMA, as_pieces, checkpoint, weights

CHUNK = 512
FILE = FileEntry(name="a.safetensors", bytes=43 * 4096, chunk_bytes=4096, digests="")


class CountingStore:
    """Counts the bytes of shard files that are read."""

    def __init__(self, store):
        self.store, self.url, self.bytes, self.lock = store, store.url, 0, threading.Lock()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def read(self, name, offset, views, passed=None):
        with self.lock:
            self.bytes += sum(len(view) for view in views)
        self.store.read(name, offset, views, passed)


class Group:
    """Broadcast between ranks that are threads."""

    def __init__(self, size):
        self.wall, self.box = threading.Barrier(size), [None]

    def broadcast(self, index):
        def run(tensor, source):
            if index == source:
                self.box[0] = tensor.copy()
            self.wall.wait()
            tensor[:] = self.box[0]
            self.wall.wait()

        return run


@pytest.mark.slow
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
        share = Share(rank, replicas, group.broadcast(rank), may_read_all=False)
        load_checkpoint(tmp_path, as_pieces(got), gather=gather, share=share)
        return got

    for got in Ranks(replicas).run(work):
        assert all(torch.equal(got[name], t) for name, t in tensors.items())
    unique = sum(t.numel() * 4 for t in tensors.values())
    assert 1.0 <= store.bytes / unique <= 1.02


def test_chunks_are_dealt_out_whole_evenly_and_once():
    jobs = [Job(FILE, chunk, []) for chunk in range(43)]
    for size in (2, 3, 8):
        rounds = rounds_of(jobs, size)
        assert [job for blocks in rounds for block in blocks for job in block] == jobs
        counts = [sum(len(blocks[m]) for blocks in rounds) for m in range(size)]
        assert max(counts) - min(counts) <= max(len(rounds[0][0]), 1)
        assert all(len(blocks) == size for blocks in rounds)
    assert rounds_of([], 2) == [[(), ()]]


def test_reading_oneself_is_chosen_only_where_it_is_clearly_faster():
    assert direct_is_faster(0.1, 1.0, 2)
    assert not direct_is_faster(0.9, 1.0, 2)
    assert not direct_is_faster(0.2, 1.0, 8), "seven more blocks have to be read"


def test_all_read_all_when_telling_is_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(engine.ckpt.save, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(engine.ckpt.share, "BLOCK_BYTES", 16 * CHUNK)
    tensors = weights(LLAMA) | {"embed.weight": torch.randn(1024, 256)}
    checkpoint(tmp_path, LLAMA, tensors)
    store = CountingStore(open_store(tmp_path))
    monkeypatch.setattr(engine.ckpt.restore, "open_root", lambda where: store)
    monkeypatch.setattr(engine.ckpt.restore, "direct_is_faster", lambda *times: True)
    group = Group(2)

    def work(rank, gather):
        got = {name: torch.zeros_like(t) for name, t in tensors.items()}
        share = Share(rank, 2, group.broadcast(rank))
        load_checkpoint(tmp_path, as_pieces(got), gather=gather, share=share)
        return got

    for got in Ranks(2).run(work):
        assert all(torch.equal(got[name], t) for name, t in tensors.items())
    unique = sum(t.numel() * 4 for t in tensors.values())
    assert store.bytes / unique > 1.8


def test_damage_seen_by_one_reader_is_an_error_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(engine.ckpt.save, "CHUNK_BYTES", CHUNK)
    tensors = weights(LLAMA)
    checkpoint(tmp_path, LLAMA, tensors)
    path = next(tmp_path.glob("*/*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    group = Group(2)

    def work(rank, gather):
        got = {name: torch.zeros_like(t) for name, t in tensors.items()}
        with pytest.raises(CheckpointError, match="is damaged"):
            load_checkpoint(
                path.parent, as_pieces(got), gather=gather,
                share=Share(rank, 2, group.broadcast(rank)),
            )  # fmt: skip

    Ranks(2).run(work)


def test_ranks_that_hold_different_pieces_read_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(engine.ckpt.save, "CHUNK_BYTES", 64)
    save(tmp_path, 1, 2, 2, dense(torch.float32))
    store = CountingStore(open_store(tmp_path))
    monkeypatch.setattr(engine.ckpt.restore, "open_root", lambda where: store)
    for rank in range(4):
        load_checkpoint(tmp_path, pieces_of(rank, 2, 2, torch.float32))
    unique = sum(t.numel() * 4 for t in dense(torch.float32).values())
    assert store.bytes / unique < 1.6, "edges of 64-byte chunks only"
