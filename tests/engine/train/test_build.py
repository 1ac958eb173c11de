"""From a recipe to a rank's parts: programs, buffers, and who counts what."""

import msgspec
import pytest
import torch

from engine.optim.adam import ShardAdamW
from engine.schedule.action import Kind
from engine.spec.layout import ParallelLayout
from engine.spec.recipe import OverlapSpec
from engine.train.build import counted_parts, seed_everything, step_program
from tests.engine.train.single import engine_of, recipe

LAYOUTS = [
    ParallelLayout(), ParallelLayout(tp=2), ParallelLayout(dp=3, zero=0),
    ParallelLayout(dp=3, zero=1), ParallelLayout(pp=2, vpp=2, dp=2),
    ParallelLayout(tp=2, pp=2, dp=2),
]  # fmt: skip


def made_for(layout: ParallelLayout, **model: object):
    batch = {"global_batch": 4 * layout.dp, "micro_batch": 1}
    made = recipe(model={"layers": 4, **model}, batch=batch)
    return msgspec.structs.replace(made, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_over_all_ranks_each_parameter_is_counted_once_in_the_norm(layout, tied):
    """The gradient norm sums runs of shards: together they are the model, no copy counted twice."""
    made = made_for(layout, tied=tied)
    counted = 0
    for rank in range(layout.world_size):
        engine = engine_of(made, layout, rank)
        for unit in engine.all_units():
            runs = counted_parts(unit, engine)
            length = unit.shard.master.numel()
            assert all(0 <= a < b <= length for a, b in runs)
            counted += sum(b - a for a, b in runs)
    assert counted == made.model.params


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_decay_reaches_exactly_the_matrices_of_each_shard(layout):
    made = made_for(layout)
    for rank in range(layout.world_size):
        for unit in engine_of(made, layout, rank).all_units():
            assert isinstance(unit.optimizer, ShardAdamW)
            begin, end = unit.shard.range
            wanted = torch.zeros(unit.shard.flat.padded, dtype=torch.bool)
            for weight in unit.shard.flat.weights:
                wanted[weight.start : weight.start + weight.numel] = weight.info.decay
            found = torch.zeros(end - begin, dtype=torch.bool)
            for first, stop, decays in unit.optimizer._cuts:
                found[first:stop] = decays
            assert torch.equal(found, wanted[begin:end])


@pytest.mark.parametrize("overlap", [True, False])
def test_a_program_gathers_and_reduces_each_chunk_once(overlap):
    layout = ParallelLayout(pp=2, vpp=2, dp=2)
    made = made_for(layout)
    made = msgspec.structs.replace(made, overlap=OverlapSpec(pp=overlap, dp=overlap))
    for stage in step_program(made).stages:
        for kind in (Kind.UNSHARD, Kind.REDUCE_GRAD):
            chunks = [a.chunk for a in stage if a.kind is kind]
            assert len(chunks) == len(set(chunks)) == 2


def test_each_stage_holds_its_chunks_and_the_ends_a_tied_matrix():
    layout = ParallelLayout(pp=2, vpp=2)
    made = made_for(layout)
    first, last = (engine_of(made, layout, rank) for rank in (0, 1))
    assert list(first.stage.chunks) == [0, 2]
    assert list(last.stage.chunks) == [1, 3]
    assert first.tied is not None
    assert last.tied is not None
    assert torch.equal(first.tied.shard.master, last.tied.shard.master)


def test_messages_between_stages_have_the_streams_shape():
    made = made_for(ParallelLayout(tp=2, pp=2))
    whole = engine_of(made, ParallelLayout(tp=2, pp=2, sequence_parallel=False)).stage
    split = engine_of(made, ParallelLayout(tp=2, pp=2)).stage
    assert whole.stream_shape == (8, 1, 16)
    assert split.stream_shape == (4, 1, 16)


def test_seeding_makes_strangers_repeatable_and_forbids_chance():
    before = torch.are_deterministic_algorithms_enabled()
    try:
        seed_everything(recipe())
        first = torch.rand(3)
        seed_everything(recipe())
        assert torch.equal(torch.rand(3), first)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)
