"""Silent data corruption: a device computes wrong numbers, and nothing fails.

Losses do not tell: after the reduction all replicas hold the same wrong gradient. So now and then
all replicas compute one micro-batch of the same samples with the weights they hold, which must be
the same ones, and compare what they got bit by bit. Replicas that agree with most of the others are
right; if the check is done again at once and a rank's own numbers change, that rank is wrong.

What is found: faults of compute and memory that show in a forward, a backward or in the gathered
parameters. What is not: a gradient spoiled on its way through a reduction, an update that its only
owner makes wrongly (with layout.zero = 0 every replica makes it, and they are compared), and a
fault that is not there while it is looked for. The model must compute alike everywhere: one kind of
device, the same libraries, sums over tp in one order (NCCL_ALGO), and train.deterministic. Where it
does not, several replicas differ at once, and nobody is called wrong for sure.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm.collectives import all_gather, all_reduce, broadcast
from engine.model.transformer import MicroBatch
from engine.parallel.pipeline import Pipeline
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.verify import verify
from engine.spec.recipe import Recipe
from engine.train.build import Engine
from engine.train.failure import Corrupted, Mismatch


class Notes(NamedTuple):
    """What this rank computed in one check."""

    orders: list[tuple[int, int]]
    """Places in the order in which results follow from each other; the same on all replicas."""
    digests: Tensor
    """int64, as long."""


class ReplicaCheck:
    """Compares the replicas of one run; all ranks call it alike."""

    def __init__(self, recipe: Recipe, engine: Engine) -> None:
        layout, overlap = recipe.layout, recipe.overlap
        self.every = recipe.job.sdc_every
        self._engine = engine
        self._scale = 1.0 / (recipe.batch.global_batch * recipe.model.seq)
        compute = build(recipe.schedule.kind, layout.pp, layout.vpp, 1)
        program = add_comm(compute, overlap_pp=overlap.pp, overlap_dp=overlap.dp)
        self._pipeline = Pipeline(engine.stage, verify(program))
        self._passed = -1

    def is_due(self, done: int, *, saves: bool) -> bool:
        """Whether to check after `done` updates: every so often, and before every save."""
        return self._passed != done and (saves or done % self.every == 0)

    def run(self, done: int, micro: MicroBatch) -> None:
        """Compare; raises Corrupted on every rank if any two replicas differ.

        done   updates that were made
        micro  this rank's copy of any micro-batch of its replica; the same on all its ranks
        """
        engine = self._engine
        with engine.stage.events.span("sdc"):
            shared = self._shared(micro, turn=done // self.every)
            first = self._compute(shared)
            differs = _first_difference(self._of_all(first), engine.mesh.dp_reduce.index)
            if not self._any(differs >= 0):
                self._passed = done
                return
            again = self._compute(shared)
        changed = (first.digests != again.digests).nonzero()
        raise Corrupted(
            Mismatch(
                step=done,
                differs_at=first.orders[differs] if differs >= 0 else None,
                changed_at=first.orders[int(changed[0])] if len(changed) else None,
                chunks=self._pipeline.schedule.chunks,
                replica=engine.mesh.dp_reduce.index,
                replicas=engine.mesh.dp_reduce.size,
            )
        )

    def _shared(self, micro: MicroBatch, *, turn: int) -> MicroBatch:
        """The micro-batch of one replica, on all of them; another replica's each time."""
        group = self._engine.mesh.dp_reduce
        tokens, targets, samples = (part.clone() for part in micro[:3])
        for tensor in (tokens, targets, samples):
            broadcast(tensor, turn % group.size, group).wait()
        return MicroBatch(tokens, targets, samples, micro.step)

    def _compute(self, micro: MicroBatch) -> Notes:
        """One micro-batch forward and back; no gradient is kept."""
        engine = self._engine
        witness, units = engine.stage.axis.witness, engine.all_units()
        with witness.listening() as notes:
            witness.enter(0)
            for unit in units:
                unit.shard.start_unshard()
                unit.shard.finish_unshard()
                witness.see(unit.shard.flat.data)
            self._pipeline.run(lambda _: micro, scale=self._scale, on_reduce=lambda _: None)
            witness.enter(2 * self._pipeline.schedule.chunks + 1)
            for unit in units:
                witness.see(unit.shard.flat.grad)
                unit.shard.forget_gradients()
        notes.sort(key=lambda note: note.order)
        return Notes([n.order for n in notes], torch.stack([n.digest for n in notes]).cpu())

    def _of_all(self, mine: Notes) -> Tensor:
        """[replicas, notes] digests of the ranks at this rank's place in every replica."""
        group, device = self._engine.mesh.dp_reduce, self._engine.stage.device
        part = mine.digests.to(device)
        rows = torch.empty((group.size, len(part)), dtype=torch.int64, device=device)
        all_gather(rows.view(-1), part, group).wait()
        return rows.cpu()

    def _any(self, mine: bool) -> bool:
        flag = torch.tensor([float(mine)], device=self._engine.stage.device)
        all_reduce(flag, self._engine.mesh.world, op="max").wait()
        return bool(flag.item())


def _first_difference(rows: Tensor, me: int) -> int:
    """Where a replica's notes first are not those of most replicas; -1 if they always are.

    Without a majority every replica differs: which one is right cannot be told.
    """
    common = rows.mode(dim=0).values
    is_most = 2 * (rows == common).sum(dim=0) > len(rows)
    found = ((rows[me] != common) | ~is_most).nonzero()
    return int(found[0]) if len(found) else -1
