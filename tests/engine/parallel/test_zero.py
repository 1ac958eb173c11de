"""Sharded data parallelism: who owns what, masters, stale parameters, reductions."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ranks import World
from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.model.transformer import Chunk
from engine.parallel.flat import FlatChunk, weights_of
from engine.parallel.zero import ShardedChunk
from engine.spec.layout import Coord, ParallelLayout
from engine.spec.model import ModelSpec
from tests.engine.parallel.alone import chunk_of, mesh_of

SPEC = ModelSpec(layers=2, hidden=8, heads=2, vocab=16, seq=4)
LLAMA = ModelSpec(
    layers=4, hidden=16, heads=4, kv_heads=4, vocab=32, seq=4, norm="rmsnorm", bias=False,
    activation="swiglu", position="rotary", tied=False, ffn=24,
)  # fmt: skip


def sharded(zero: int, *, dtype=torch.float32, layout: ParallelLayout | None = None, rank: int = 0):
    layout = layout or ParallelLayout()
    flat = chunk_of(SPEC, dp=layout.dp, dtype=dtype).flat
    return ShardedChunk(flat, mesh_of(layout, rank), zero=zero, sum_tp=False)


def empty_flat(spec: ModelSpec, layout: ParallelLayout, chunk: int, index: int) -> FlatChunk:
    """The buffer of a chunk on the meta device: sizes without memory."""
    meta = torch.device("meta")
    first, last = chunk == 0, chunk == layout.chunks - 1
    with meta:
        module = Chunk(spec, layout.layers_of(chunk, spec.layers), first=first, last=last)
    weights = list(weights_of(module, tp_index=index, tp=layout.tp).values())
    return FlatChunk(weights, dp=layout.dp, dtype=torch.float32, device=meta)


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 5, 8]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]), st.sampled_from([SPEC, LLAMA]),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_owned_ranges_partition_every_element_over_all_ranks(tp, dp, pp, vpp, spec):
    """Each element of each parameter has one owner per tp rank that holds it, in each layout."""
    if spec.heads % tp or spec.layers % (pp * vpp):
        return
    layout = ParallelLayout(tp=tp, pp=pp, vpp=vpp, dp=dp)
    counts: dict[str, torch.Tensor] = {}
    for chunk, index in itertools.product(range(layout.chunks), range(tp)):
        flat = empty_flat(spec, layout, chunk, index)
        for replica in range(dp):
            rank = layout.rank(Coord(tp=index, dp=replica, pp=chunk % pp))
            shard = ShardedChunk(flat, mesh_of(layout, rank), zero=1, sum_tp=True)
            for weight, first, stop in shard.owned():
                if weight.info.split is None and index:
                    continue
                box = torch.zeros(weight.numel)
                box[first:stop] = 1
                whole = counts.setdefault(weight.info.name, torch.zeros(weight.info.shape))
                whole[tuple(slice(a, b) for a, b in weight.box)] += box.view(weight.shape)
    copies = {"embed.weight": 2 if spec.tied and layout.chunks > 1 else 1}
    for name, count in counts.items():
        assert bool((count == copies.get(name, 1)).all()), name
    assert sum(c.numel() for c in counts.values()) == spec.params


def test_with_zero_0_every_replica_owns_everything():
    layout = ParallelLayout(dp=4)
    for rank in range(4):
        assert sharded(0, layout=layout, rank=rank).range == (
            0,
            sharded(0, layout=layout).flat.padded,
        )


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_in_full_precision_the_master_is_the_parameters_themselves(zero):
    shard = sharded(zero)
    assert shard.master.data_ptr() == shard.flat.data[shard.range[0] :].data_ptr()


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_half_precision_parameters_follow_a_float32_master(zero):
    shard = sharded(zero, dtype=torch.bfloat16)
    assert shard.master.dtype == torch.float32
    shard.master.fill_(1.0 + 2**-20)  # not a bfloat16 number
    shard.updated()
    shard.start_unshard()
    shard.finish_unshard()
    assert bool((shard.flat.data == 1.0).all())
    assert bool((shard.master == 1.0 + 2**-20).all())


def test_a_forward_with_parameters_of_an_earlier_update_is_refused():
    shard = sharded(1)
    shard.finish_unshard()  # nothing has been updated
    shard.updated()
    with pytest.raises(AssertionError, match="stale parameters: of update 0, need 1"):
        shard.finish_unshard()
    shard.start_unshard()
    shard.finish_unshard()


def test_an_update_while_a_gather_is_under_way_is_refused():
    shard = sharded(1)
    shard.updated()
    shard.start_unshard()
    shard.updated()
    with pytest.raises(AssertionError, match="stale parameters: of update 1, need 2"):
        shard.finish_unshard()


def test_a_gradient_that_was_not_reduced_is_refused():
    with pytest.raises(AssertionError, match="not reduced"):
        sharded(1).finish_reduce()


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_alone_the_reduced_gradient_is_the_accumulated_one_and_ends_with_the_update(zero):
    shard = sharded(zero)
    shard.flat.grad.copy_(torch.arange(shard.flat.padded))
    shard.start_reduce()
    assert torch.equal(shard.finish_reduce(), torch.arange(shard.flat.padded).float())
    shard.updated()
    assert not bool(shard.flat.grad.any())


def exchange(rank: int, meet: Rendezvous, args: dict) -> dict:
    """Two replicas fill their gradients with known numbers, reduce, update, gather."""
    layout = ParallelLayout(dp=args["dp"])
    start_world(rank, layout.world_size, meet, backend="gloo", timeout_s=60)
    mesh = build_mesh(layout, rank, backend="gloo", timeout_s=60)
    flat = chunk_of(SPEC, dp=layout.dp).flat
    shard = ShardedChunk(flat, mesh, zero=args["zero"], sum_tp=False)
    with torch.no_grad():
        flat.data.zero_()
    flat.grad.copy_(torch.arange(flat.padded) * 10.0**rank)
    shard.start_reduce()
    grad = shard.finish_reduce().clone()
    held = flat._grad is not None
    begin, end = shard.range
    shard.master.copy_(torch.arange(begin, end, dtype=torch.float64))
    shard.updated()
    shard.start_unshard()
    shard.start_unshard()  # asking twice gathers once
    shard.finish_unshard()
    end_world()
    return {
        "grad": grad.tolist(), "range": shard.range, "held": held, "data": flat.data.tolist(),
    }  # fmt: skip


@pytest.mark.multi
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_replicas_sum_gradients_and_share_updated_parameters(world: World, zero):
    found = world.run(f"{__name__}:exchange", 3, {"dp": 3, "zero": zero})
    for result in found:
        begin, end = result["range"]
        assert result["grad"] == [111.0 * i for i in range(begin, end)]
        assert result["data"] == [float(i) for i in range(len(result["data"]))]
        assert result["held"] == (zero < 2), "ZeRO-2 gives the full gradient back"
    covered = sorted(i for r in found for i in range(*r["range"]))
    assert covered == sorted(list(range(len(found[0]["data"]))) * (3 if zero == 0 else 1))
