"""The global norm, and clipping as torch does it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.optim import clip
from engine.optim.clip import clip_factor, square_sum

CPU = torch.device("cpu")


def numbers(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@given(st.lists(st.integers(0, 40), max_size=5))
@settings(deadline=None)
def test_sums_squares_of_all_parts_whatever_their_lengths(sizes):
    parts = [numbers(n, i).double() for i, n in enumerate(sizes)]
    expected = sum(float(p.square().sum()) for p in parts)
    assert float(square_sum(parts, CPU)) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("n", [1, clip._BLOCK - 1, clip._BLOCK, 3 * clip._BLOCK + 5])
def test_float32_gradients_are_summed_with_float64s_accuracy(n):
    part = numbers(n)
    exact = float(part.double().square().sum())
    assert float(square_sum([part], CPU)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("limit", [0.1, 1.0, 1e3])
def test_clips_as_torch_does(limit):
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (3, 20, 7)]
    for i, p in enumerate(parameters):
        p.grad = numbers(p.numel(), i)
    own = torch.cat([p.grad for p in parameters])
    norm = math.sqrt(float(square_sum([p.grad for p in parameters], CPU)))
    total = float(torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=False))
    assert norm == pytest.approx(total, rel=1e-6)
    clipped = torch.cat([p.grad for p in parameters])
    assert torch.allclose(own * clip_factor(norm, limit), clipped, rtol=1e-6)


def test_small_gradients_and_no_limit_are_left_alone():
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(1e9, 0.0) == 1.0
    assert clip_factor(0.0, 1.0) == 1.0


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_the_clipped_norm_never_exceeds_the_limit(norm, limit):
    assert norm * clip_factor(norm, limit) <= limit


def test_a_number_that_is_not_finite_is_seen():
    assert math.isnan(float(square_sum([torch.tensor([1.0, math.nan])], CPU)))
    assert math.isinf(float(square_sum([torch.tensor([math.inf])], CPU)))
