"""A node of two ranks without processes: what trainers leave in memory, and a stepped flusher."""

import time
import uuid

import torch

from engine.ckpt.arena import CommitJob, Spool, Ticket, map_slot
from engine.ckpt.flush import Flusher, FlushOptions
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.save import describe_part
from engine.ckpt.snapshot import host_view, plan_pieces
from engine.ckpt.store import open_store
from tests.engine.ckpt.state import dense, pieces_of

F32 = torch.float32
QUICK = FlushOptions(retry_first_s=0.01, retry_most_s=0.03)


class Node:
    """A trainer's side of a spool with two ranks, and a flusher that is stepped by hand."""

    def __init__(self, folder, options=QUICK, root=None):
        self.spool, self.root = Spool(folder), root or f"memory://{uuid.uuid4().hex}"
        self.store = open_store(self.root)
        self.flusher = Flusher(self.spool, options)

    def snapshot(self, step, rank, slot=0, seed=None, owner=""):
        """What a rank leaves in memory at a step."""
        pieces = pieces_of(rank, 1, 2, F32, dense(F32, seed=step if seed is None else seed))
        image = plan_pieces(pieces, rank)
        data = b"".join((image.header, *(host_view(pieces[i].tensor) for i in image.order)))
        map_slot(self.spool.image(rank, slot), len(data), create=True)[: len(data)] = data
        part = describe_part(image, f"rank-{rank:05d}.safetensors", "", rank=rank)
        ticket = Ticket(
            state="pending", root=self.root, folder=f"step-{step:08d}", world=2,
            meta=CheckpointMeta(step=step), part=part, owner=owner,
        )  # fmt: skip
        self.spool.write_ticket(rank, slot, ticket)
        return ticket

    def job(self, step, created_s=None, **more):
        folder = f"step-{step:08d}"
        when = time.time() if created_s is None else created_s
        job = CommitJob(
            root=self.root, folder=folder, world=2, meta=CheckpointMeta(step=step), created_s=when,
            **more,
        )  # fmt: skip
        self.spool.write_job(folder, job)
        return job

    def save(self, step, slot=0, seed=None, owner="", **more):
        for rank in range(2):
            self.snapshot(step, rank, slot, seed, owner)
        return self.job(step, owner=owner, **more)

    def round(self):
        return self.flusher.round(map)

    def files(self, step):
        return [f.name for f in self.store.files(f"step-{step:08d}")]
