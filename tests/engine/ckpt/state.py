"""A small training state and ranks as threads, for the tests of this room."""

import threading
from math import prod

import numpy as np
import torch

from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import SLOTS, Piece
from engine.ckpt.save import save_checkpoint


class Ranks:
    """Ranks as threads that gather through a barrier."""

    def __init__(self, world):
        self.world, self.slots = world, [None] * world
        self.wall = threading.Barrier(world)

    def gather(self, rank):
        def run(item):
            self.slots[rank] = item
            self.wall.wait()
            every = list(self.slots)
            self.wall.wait()
            return every

        return run

    def run(self, work):
        results, errors = [None] * self.world, [None] * self.world

        def body(rank):
            try:
                results[rank] = work(rank, self.gather(rank))
            except BaseException as error:
                errors[rank] = error
                self.wall.abort()

        threads = [threading.Thread(target=body, args=(r,)) for r in range(self.world)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        real = [e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)]
        if any(errors):
            raise (real or [e for e in errors if e])[0]
        return results


SHAPES = {"embed.weight": (12, 8), "layers.0.o.weight": (8, 16), "layers.0.norm.weight": (8,)}
SPLIT = {"embed.weight": 0, "layers.0.o.weight": 1, "layers.0.norm.weight": None}


def dense(dtype, seed=0):
    rng = np.random.default_rng(seed)
    return {
        (n, s): torch.from_numpy(rng.standard_normal(shape)).to(dtype)
        for n, shape in SHAPES.items()
        for s in SLOTS
    }


def pieces_of(rank, tp, dp, dtype, state=None):
    t, d = rank % tp, rank // tp
    out = []
    for name, shape in SHAPES.items():
        box = [(0, s) for s in shape]
        dim = SPLIT[name]
        owners = dp
        index = d
        if dim is not None:
            each = shape[dim] // tp
            box[dim] = (t * each, (t + 1) * each)
        else:
            owners, index = tp * dp, rank
        count = prod(hi - lo for lo, hi in box)
        cuts = [count * i // owners for i in range(owners + 1)]
        lo, hi = cuts[index], cuts[index + 1]
        for slot in SLOTS:
            if state is None:
                tensor = torch.full((hi - lo,), -1.0).to(dtype)
            else:
                view = state[name, slot][tuple(slice(a, b) for a, b in box)]
                tensor = view.reshape(-1)[lo:hi].clone()
            out.append(
                Piece(
                    name=name,
                    slot=slot,
                    global_shape=shape,
                    box=tuple(box),
                    flat=(lo, hi),
                    tensor=tensor,
                )
            )
    return out


def save(folder, step, tp, dp, state, dtype=torch.float32):
    ranks = Ranks(tp * dp)

    def work(rank, gather):
        return save_checkpoint(
            folder,
            pieces_of(rank, tp, dp, dtype, state),
            meta=CheckpointMeta(step=step, rng={"k": 1}),
            rank=rank,
            world=tp * dp,
            gather=gather,
            barrier=lambda: None,
        )

    return ranks.run(work)[0]
