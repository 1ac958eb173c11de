"""Putting a layout on a model: its parameters move to the buffers, with the plain values."""

import pytest
import torch

from engine.model.parameter import info_of
from engine.model.transformer import Dropout, whole_model
from engine.parallel.apply import Placement, parallelize
from engine.parallel.tensor import ParallelInto, ParallelNorm, ParallelOut
from engine.parallel.vocab import ParallelEmbedding, ParallelHead
from engine.spec.model import ModelSpec
from tests.engine.parallel.alone import CPU, SEED, axis_of, batch, chunk_of
from tests.engine.parallel.twins import SHAPES, spec_of


def ends_of(spec: ModelSpec, *, first: bool, last: bool, tied=None):
    place = Placement(torch.float64, CPU, 2, SEED, share_tied=spec.tied, tied=tied)
    return parallelize(spec, range(1), (first, last), axis_of(), place)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_parameter_stays_in_a_module(shape):
    made = chunk_of(spec_of(shape))
    assert list(made.module.parameters()) == []
    kinds = {type(m) for m in made.module.modules()}
    assert {ParallelInto, ParallelNorm, ParallelOut, ParallelEmbedding, ParallelHead} <= kinds


@pytest.mark.parametrize("shape", SHAPES)
def test_the_buffer_starts_with_the_plain_models_values(shape):
    spec = spec_of(shape)
    plain = {
        info_of(p).name: p for p in whole_model(spec, seed=SEED, dtype=torch.float64).parameters()
    }
    made = chunk_of(spec)
    assert {w.info.name for w in made.flat.weights} == set(plain)
    for weight in made.flat.weights:
        assert torch.equal(weight.data, plain[weight.info.name]), weight.info.name


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_is_the_plain_models(shape):
    spec = spec_of(shape)
    micro = batch(spec)
    plain = whole_model(spec, seed=SEED, dtype=torch.float64)(None, micro)
    made = chunk_of(spec).module(None, micro)
    assert float(made.detach()) == pytest.approx(float(plain.detach()), rel=1e-13)


def test_a_tied_matrix_of_one_chunk_stays_in_its_buffer():
    made = chunk_of(spec_of("gpt"))
    assert made.tied is None
    assert made.module.embed.weight is made.module.head.weight
    assert [w.info.name for w in made.flat.weights].count("embed.weight") == 1


def test_a_tied_matrix_of_two_chunks_gets_a_buffer_of_its_own():
    spec = spec_of("gpt")
    first, last = ends_of(spec, first=True, last=False), ends_of(spec, first=False, last=True)
    for made in (first, last):
        assert [w.info.name for w in made.tied.weights] == ["embed.weight"]
        assert "embed.weight" not in [w.info.name for w in made.flat.weights]
    assert torch.equal(first.tied.data, last.tied.data)


def test_both_ends_on_one_rank_share_that_buffer():
    """The V placement puts the first and the last chunk on the first stage."""
    spec = spec_of("gpt")
    first = ends_of(spec, first=True, last=False)
    last = ends_of(spec, first=False, last=True, tied=first.tied)
    assert last.tied is None
    assert last.module.head.weight is first.module.embed.weight


def test_a_middle_chunk_has_no_tied_matrix():
    made = ends_of(spec_of("gpt"), first=False, last=False)
    assert made.tied is None
    assert made.module.embed is None
    assert made.module.head is None


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_dropout_is_told_which_tokens_it_sees(index, sequence_parallel):
    axis = axis_of(index, 2, sequence_parallel=sequence_parallel)
    made = chunk_of(spec_of("gpt"), axis=axis)
    drops = [m for m in made.module.modules() if isinstance(m, Dropout)]
    assert len(drops) == 5
    assert {d.first for d in drops} == {4 * index if sequence_parallel else 0}
    assert {d.seed for d in drops} == {SEED}


def test_no_memory_is_taken_for_the_plain_model():
    """The model is built on the meta device: a chunk's buffer is all that is allocated."""
    made = chunk_of(spec_of("llama"), dtype=torch.bfloat16)
    assert made.flat.data.numel() == made.flat.padded
    assert all(t.device == CPU for t in (made.flat.data, *(w.data for w in made.flat.weights)))
    assert all(w.data.dtype == torch.bfloat16 for w in made.flat.weights)
