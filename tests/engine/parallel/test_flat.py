"""Flat buffers: the order of regions, runs of decay, views that alias."""

import pytest
import torch

from engine.model.transformer import Chunk
from engine.parallel.flat import FlatChunk, weights_of
from engine.spec.model import ModelSpec

SHAPES = {
    "gpt": {},
    "rotary": {"position": "rotary"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied": False},
    "parallel": {"block": "parallel"},
}
CPU = torch.device("cpu")


def flat_of(shape: str = "gpt", *, dp: int = 1, tp: int = 1, dtype=torch.float32) -> FlatChunk:
    spec = ModelSpec(layers=2, hidden=8, heads=2, vocab=16, seq=4, **SHAPES[shape])
    with torch.device("meta"):
        chunk = Chunk(spec, range(2), first=True, last=True)
    weights = list(weights_of(chunk, tp_index=0, tp=tp).values())
    return FlatChunk(weights, dp=dp, dtype=dtype, device=CPU)


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_lie_side_by_side_and_fill_the_buffer(shape):
    flat = flat_of(shape)
    position = 0
    for weight in flat.weights:
        assert weight.start == position
        position += weight.numel
    assert flat.numel == position


@pytest.mark.parametrize("shape", SHAPES)
def test_what_tp_ranks_hold_in_full_is_one_run_at_the_end(shape):
    flat = flat_of(shape)
    start, stop = flat.replicated()
    assert stop == flat.numel
    for weight in flat.weights:
        assert (weight.start >= start) == (weight.info.split is None), weight.info.name


@pytest.mark.parametrize("shape", SHAPES)
def test_decay_is_at_most_two_runs_and_exactly_the_matrices(shape):
    flat = flat_of(shape)
    runs = flat.decayed()
    assert len(runs) <= 2
    decays = torch.zeros(flat.padded, dtype=torch.bool)
    for begin, end in runs:
        decays[begin:end] = True
    for weight in flat.weights:
        part = decays[weight.start : weight.start + weight.numel]
        assert bool((part == (len(weight.info.shape) > 1)).all()), weight.info.name


def test_projections_of_one_input_are_neighbours():
    names = [w.info.name for w in flat_of().weights]
    for group in ("attn.{}.weight", "attn.{}.bias"):
        at = [names.index(f"layers.0.{group.format(p)}") for p in "qkv"]
        assert at == list(range(at[0], at[0] + 3))


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 7])
def test_the_buffer_divides_over_the_replicas(dp):
    flat = flat_of(dp=dp)
    assert flat.padded % dp == 0
    assert 0 <= flat.padded - flat.numel < dp
    assert torch.equal(flat.data[flat.numel :], torch.zeros(flat.padded - flat.numel))


def test_weights_and_gradients_are_views_of_their_buffers():
    flat = flat_of()
    for number, weight in enumerate(flat.weights, 1):
        weight.data.fill_(number)
        weight.grad.fill_(-number)
    for number, weight in enumerate(flat.weights, 1):
        run = slice(weight.start, weight.start + weight.numel)
        assert set(flat.data[run].tolist()) == {float(number)}
        assert set(flat.grad[run].tolist()) == {float(-number)}


def test_a_gradient_is_zero_after_clearing_kept_or_not():
    flat = flat_of()
    for keep in (True, False):
        flat.grad.fill_(5.0)
        before = flat.grad.data_ptr()
        flat.clear_grad(keep=keep)
        assert not bool(flat.grad.any())
        if keep:
            assert flat.grad.data_ptr() == before


@pytest.mark.parametrize(
    ("dtype", "reduced"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32),
     (torch.bfloat16, torch.float32), (torch.float16, torch.float32)],
)  # fmt: skip
def test_gradients_are_reduced_in_float32_at_least(dtype, reduced):
    assert flat_of(dtype=dtype).grad.dtype == reduced


@pytest.mark.parametrize("shape", SHAPES)
def test_split_parameters_shrink_with_tp_and_others_do_not(shape):
    whole, half = flat_of(shape), flat_of(shape, tp=2)
    for a, b in zip(whole.weights, half.weights, strict=True):
        assert a.info == b.info
        assert a.numel == b.numel * (1 if a.info.split is None else 2)


def test_first_values_of_a_part_are_those_of_the_whole():
    whole, half = flat_of(), flat_of(tp=2)
    for flat in (whole, half):
        flat.initialize(seed=1, std=0.02, layers=2)
    for a, b in zip(whole.weights, half.weights, strict=True):
        assert torch.equal(b.data, a.data[tuple(slice(x, y) for x, y in b.box)])
