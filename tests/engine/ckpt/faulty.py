"""A store that fails at its n-th state-changing operation, and an offline judge of what is left."""

import threading

import torch

from engine.ckpt.catalog import catalog
from engine.ckpt.hdfs_store import HdfsStore
from engine.ckpt.local_store import LocalStore
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.store import open_store
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from tests.engine.ckpt.state import dense, pieces_of

CHANGES = ("put", "put_image", "create", "settle", "remove", "remove_folder", "abort")
DRAFTING = (LocalStore, HdfsStore)
"""Stores in which a name is made in two steps."""
FAULTS = ("before", "after", "half", "error", "lie")


class Killed(BaseException):
    """The process is gone: no handler runs on."""


class FaultyStore:
    """Wraps a store. `before`, `after`: the process dies there; `half`: in the middle of a write;
    `error`: the call fails once; `lie`: the call claims success and does nothing."""

    def __init__(self, store, at, fault):
        self.store, self.at, self.fault, self.url = store, at, fault, store.url
        self.count, self.dead, self.lock = 0, False, threading.Lock()

    def __getattr__(self, name):
        real = getattr(self.store, name)
        return self._guard(name, real) if callable(real) else real

    def _guard(self, name, real):
        def call(*args):
            with self.lock:
                if self.dead:
                    raise Killed
                hit = name in CHANGES and self.count == self.at
                self.count += name in CHANGES
                if not hit:
                    return real(*args)
                return self._fail(name, real, args)

        return call

    def _fail(self, name, real, args):
        if self.fault == "error":
            raise CheckpointError("injected: no space left", remedy="none, this is a test")
        if self.fault == "lie":
            if name == "put":
                [None for _ in args[1]]  # the caller's digests see the bytes pass
            return True
        if self.fault == "after":
            real(*args)
        if self.fault == "half" and name == "put":
            data = b"".join(bytes(view) for view in args[1])
            real(args[0], [memoryview(data[: len(data) // 2])])
        if self.fault == "half" and name == "create" and isinstance(self.store, DRAFTING):
            self.store.put(f"{args[0]}.0123456789ab.draft", [memoryview(args[1])])
        if self.fault == "half" and name == "put_image":
            real(args[0], args[1], args[2] // 2, lambda view: None)
        self.dead = True
        raise Killed


def judge(root, committed, *, tp=1, dp=2):
    """Every reported checkpoint is listed, whole and loads exactly; returns the committed steps."""
    infos = [info for info in catalog(root) if info.state == "committed"]
    steps = {info.step for info in infos}
    assert committed <= steps, f"reported {committed}, listed {steps}"
    for info in infos:
        where = f"{open_store(root).url}/{info.name}"
        assert verify(where).ok, info
        for rank in range(tp * dp):
            got = pieces_of(rank, tp, dp, torch.float32)
            want = pieces_of(rank, tp, dp, torch.float32, dense(torch.float32, info.step))
            load_checkpoint(where, got)
            for g, w in zip(got, want, strict=True):
                assert torch.equal(g.tensor, w.tensor), (info.name, g.name)
    return steps
