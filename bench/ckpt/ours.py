"""Our own checkpoints as systems for ckpt_bench.py and power_cut.py.

python ckpt_bench.py --systems floor_direct,ours.py:Msctl --world 2 --dir SCRATCH
"""

import os
import shutil
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import Piece
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.save import save_checkpoint
from engine.ckpt.two_stage import TwoStage

SLOT = {"model": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def gather(item):
    """All ranks' bytes, over the trainer's own group."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, item)
    return every


class Base:
    """Common to both forms: pieces of the state, and loading."""

    layouts = ("sharded", "replicated")

    @classmethod
    def version(cls):
        return "own code"

    def __init__(self, state, workdir):
        self.state, self.workdir = state, workdir

    def pieces(self, state):
        """Sharded: a box of dim 0. Replicated: the rank's range of the whole tensor."""
        made = []
        for key, tensor in state.local.items():
            kind, _, name = key.partition(".")
            flat = tensor.view(-1)
            if state.layout == "sharded":
                rows = tensor.shape[0]
                shape = (rows * state.world, *tensor.shape[1:])
                box = ((rows * state.rank, rows * (state.rank + 1)), *((0, n) for n in shape[1:]))
                lo, hi = 0, flat.numel()
            else:
                shape, count = tuple(tensor.shape), flat.numel()
                box = tuple((0, n) for n in shape)
                lo, hi = (count * r // state.world for r in (state.rank, state.rank + 1))
            made.append(
                Piece(name=name, slot=SLOT[kind], global_shape=shape, box=box, flat=(lo, hi),
                      tensor=flat[lo:hi])
            )  # fmt: skip
        return made

    def meta(self, state, path):
        return CheckpointMeta(step=int(os.path.basename(path).rpartition("-")[2]))

    def load(self, state, path):
        load_checkpoint(Path(path), self.pieces(state))
        if state.layout == "replicated":
            for tensor in state.local.values():
                flat = tensor.view(-1)
                for r in range(state.world):
                    lo, hi = (flat.numel() * i // state.world for i in (r, r + 1))
                    if hi > lo:
                        dist.broadcast(flat[lo:hi], r)

    def close(self):
        pass


class MsctlSync(Base):
    """save_checkpoint: every rank writes while training waits."""

    def save(self, state, path):
        save_checkpoint(
            Path(path).parent, self.pieces(state), meta=self.meta(state, path), rank=state.rank,
            world=state.world, gather=gather, barrier=dist.barrier,
        )  # fmt: skip

    def done(self):
        return True


class Msctl(Base):
    """TwoStage: snapshot into the arena, flushed behind training by a process of its own."""

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        spool = Path("/dev/shm") / f"bench-{os.path.basename(workdir)}"
        self.two = TwoStage(
            workdir, self.pieces(state), rank=state.rank, world=state.world, gather=gather,
            spool=spool,
        )  # fmt: skip
        self.two.prepare()

    def save(self, state, path):
        self.step = self.meta(state, path).step
        taken = self.two.save(self.pieces(state), self.meta(state, path))
        assert taken.folder, "snapshot skipped"

    def done(self):
        return self.two.status().committed_step >= self.step

    def close(self):
        self.two.close()
        dist.barrier()
        if self.state.rank == 0:
            shutil.rmtree(self.two.spool.folder, ignore_errors=True)
