"""From a recipe to the parts of one rank: model chunks, shards, optimizers, pipelines."""

import logging
import sys
from typing import NamedTuple

import torch

from engine.comm.mesh import Mesh
from engine.device import DTYPES, Device
from engine.events.writer import EventWriter
from engine.model.transformer import set_recompute
from engine.ops.native import Kernels, choose
from engine.optim.adam import ShardAdamW
from engine.optim.lamb import ShardLamb
from engine.parallel.apply import Placement, parallelize
from engine.parallel.chunked import Chunker
from engine.parallel.flat import FlatChunk
from engine.parallel.owners import OwnerSum, parts_of
from engine.parallel.pieces import pieces_of
from engine.parallel.pipeline import Pipeline, Stage
from engine.parallel.tensor import TensorAxis
from engine.parallel.witness import Witness
from engine.parallel.zero import ShardedChunk
from engine.schedule.build import build
from engine.schedule.comm import add_comm, forward_only
from engine.schedule.schedule import Schedule
from engine.schedule.verify import verify
from engine.spec.recipe import Recipe

logger = logging.getLogger(__name__)


class Unit(NamedTuple):
    """A flat buffer with its sharding and its optimizer."""

    shard: ShardedChunk
    optimizer: ShardAdamW | ShardLamb


class Engine(NamedTuple):
    """Everything that one rank trains with."""

    mesh: Mesh
    stage: Stage
    train: Pipeline
    evaluate: Pipeline
    units: dict[int, Unit]
    """By chunk."""
    tied: Unit | None
    """The separately kept vocabulary matrix of a first or last stage, if two chunks share it."""

    def all_units(self) -> list[Unit]:
        """Chunks in forward order, then the tied matrix."""
        return [*self.units.values(), *([self.tied] if self.tied else [])]


def step_program(recipe: Recipe) -> Schedule:
    """The verified program of a training step of this recipe."""
    layout, overlap = recipe.layout, recipe.overlap
    order, count = recipe.schedule, recipe.batch.microbatches(layout)
    compute = build(order.kind, layout.pp, layout.vpp, count, order.group, order.run_ahead)
    return verify(
        add_comm(compute, overlap_pp=overlap.pp, overlap_dp=overlap.dp, ahead=overlap.pp_ahead)
    )


def build_engine(recipe: Recipe, mesh: Mesh, device: Device, events: EventWriter) -> Engine:
    """Create this rank's part of the model with its initial values, and all that moves it."""
    layout, model = recipe.layout, recipe.model
    program = step_program(recipe)
    pieces = pieces_of(recipe, on_cpu=device.torch_device.type == "cpu")
    if recipe.overlap.tp and layout.tp > 1 and pieces == 1 and not recipe.overlap.tp_halves:
        logger.info("tensor-parallel GEMMs stay whole: on this CPU nothing would hide")
    witness = Witness()
    chunker = Chunker(
        mesh.tp, pieces=pieces, ahead=recipe.overlap.tp, events=events, witness=witness
    )
    axis = TensorAxis(
        mesh.tp, sequence_parallel=layout.sequence_parallel, events=events,
        chunker=chunker if pieces > 1 else None, witness=witness,
    )  # fmt: skip
    dtype = DTYPES[recipe.train.precision]
    place = Placement(
        dtype=dtype, device=device.torch_device, dp=layout.dp,
        seed=recipe.seed, share_tied=model.tied and layout.chunks > 1,
        kernels=choose(recipe.train.ops, device.torch_device, dtype),
        halves_ahead=recipe.overlap.tp if recipe.overlap.tp_halves and layout.tp > 1 else None,
    )  # fmt: skip
    chunks, units, tied = {}, {}, None
    for chunk in program.chunks_of(layout.coord(mesh.rank).pp):
        ends = (chunk == 0, chunk == layout.chunks - 1)
        made = parallelize(model, layout.layers_of(chunk, model.layers), ends, axis, place)
        set_recompute(made.module, recipe.train.recompute)
        chunks[chunk] = made.module
        units[chunk] = _unit(recipe, made.flat, axis, mesh, place.kernels)
        if made.tied is not None:
            tied = _unit(recipe, made.tied, axis, mesh, place.kernels)
            place = place._replace(tied=made.tied)
    begin, end = axis.local_sequence(model.seq)
    stage = Stage(
        chunks=chunks, shards={c: u.shard for c, u in units.items()}, mesh=mesh, events=events,
        stream_shape=(end - begin, recipe.batch.micro_batch, model.hidden),
        axis=axis, dtype=place.dtype, device=device.torch_device,
    )  # fmt: skip
    forward = forward_only(program)
    return Engine(mesh, stage, Pipeline(stage, program), Pipeline(stage, forward), units, tied)


def _unit(
    recipe: Recipe, flat: FlatChunk, axis: TensorAxis, mesh: Mesh, kernels: Kernels | None
) -> Unit:
    shard = ShardedChunk(flat, mesh, zero=recipe.layout.zero, sum_tp=axis.split_sequence)
    spec, master = recipe.optimizer, shard.master
    if spec.name == "lamb":
        return Unit(
            shard, ShardLamb(spec, master, parts_of(shard), OwnerSum(shard), kernels=kernels)
        )
    begin, end = shard.range
    decayed = [
        (max(start, begin) - begin, min(stop, end) - begin)
        for start, stop in flat.decayed()
        if max(start, begin) < min(stop, end)
    ]
    return Unit(shard, ShardAdamW(spec, master, decayed, kernels=kernels))


def counted_parts(unit: Unit, engine: Engine) -> list[tuple[int, int]]:
    """Runs of a shard (relative to it) that this rank counts in global sums, each element once.

    Copies held by other tp ranks, by other replicas (zero = 0) and by the last stage (tied) are
    theirs.
    """
    mesh, shard = engine.mesh, unit.shard
    if shard.zero == 0 and mesh.dp_reduce.index > 0:
        return []
    if unit is engine.tied and mesh.tied.index > 0:
        return []
    begin, end = shard.range
    first_copy, stop = shard.flat.replicated()
    limit = stop if mesh.tp.index == 0 else first_copy
    return [(0, min(end, limit) - begin)] if min(end, limit) > begin else []


def seed_everything(recipe: Recipe) -> None:
    """Nothing of ours draws from global generators; this is for operators that might."""
    torch.manual_seed(recipe.seed)
    if recipe.train.deterministic:
        _be_deterministic()


def _be_deterministic() -> None:
    """As torch.use_deterministic_algorithms(True), which tells the compiler as well.

    It imports the compiler for that: 1.2 s of every start, and nothing here is compiled by it.
    """
    switch = getattr(torch._C, "_set_deterministic_algorithms", None)
    if switch is None or "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(True, warn_only=False)
    else:
        switch(True, warn_only=False)
