"""Rotary positions: a rotation, and scores that depend on distance alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.ops.rotary import reference_rotate, rotary_tables, rotate
from tests.engine.ops.forms import assert_near, kernels, numbers

LIKE = torch.empty(0, dtype=torch.float64)
TOLERANCE = 1e-12


def vectors(s: int, d: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((s, 2, 3, d), generator=generator, dtype=torch.float64)


@given(st.integers(1, 12), st.sampled_from([2, 4, 8, 16]), st.floats(10.0, 1e6))
def test_norms_are_preserved(s, d, theta):
    x = vectors(s, d)
    y = rotate(x, *rotary_tables(s, d, theta, LIKE))
    assert torch.allclose(x.norm(dim=-1), y.norm(dim=-1), atol=TOLERANCE)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_score_depends_on_the_distance_of_its_tokens_alone(i, j, shift):
    s, d = 48, 8
    cos, sin = rotary_tables(s, d, 10000.0, LIKE)
    q, k = (vectors(1, d, seed).expand(s, -1, -1, -1) for seed in (1, 2))
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    here = (q[i] * k[j]).sum(-1)
    there = (q[i + shift] * k[j + shift]).sum(-1)
    assert torch.allclose(here, there, atol=1e-10)


def test_the_first_token_is_not_turned():
    x = vectors(3, 8)
    assert torch.equal(rotate(x, *rotary_tables(3, 8, 10000.0, LIKE))[0], x[0])


def test_pair_i_turns_by_theta_to_the_minus_2i_over_d_per_token():
    d, theta = 8, 10000.0
    cos, sin = rotary_tables(6, d, theta, LIKE)
    for pair in range(d // 2):
        angle = 5 * theta ** (-2 * pair / d)
        assert math.isclose(float(cos[5, 0, 0, pair]), math.cos(angle), abs_tol=TOLERANCE)
        assert math.isclose(float(sin[5, 0, 0, pair]), math.sin(angle), abs_tol=TOLERANCE)


def test_a_pair_is_feature_i_and_i_plus_half():
    """The layout of Llama weights as the common libraries store them."""
    x = torch.zeros((2, 1, 1, 4), dtype=torch.float64)
    x[..., 0] = 1.0
    cos, sin = rotary_tables(2, 4, 10000.0, LIKE)
    turned = rotate(x, cos, sin)[1, 0, 0]
    expected = torch.tensor([math.cos(1), 0.0, math.sin(1), 0.0], dtype=torch.float64)
    assert torch.allclose(turned, expected, atol=TOLERANCE)


def test_turning_is_invertible():
    x = vectors(5, 8)
    cos, sin = rotary_tables(5, 8, 500000.0, LIKE)
    assert torch.allclose(rotate(rotate(x, cos, sin), cos, -sin), x, atol=TOLERANCE)


def test_tables_take_the_precision_of_the_queries():
    cos, _ = rotary_tables(4, 8, 10000.0, torch.empty(0, dtype=torch.bfloat16))
    assert (cos.dtype, cos.shape) == (torch.bfloat16, (4, 1, 1, 4))


@pytest.mark.native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("s", "b", "n", "d"), [(1, 1, 1, 2), (5, 2, 3, 6), (7, 3, 2, 64)])
def test_the_native_form_equals_the_reference(s, b, n, d, dtype):
    cos, sin = rotary_tables(s, d, 10000.0, torch.empty(0, dtype=dtype))
    x = numbers(s, b, n, d, dtype=dtype)
    exact = (cos.double(), sin.double())
    assert_near(
        lambda x: rotate(x, cos, sin, kernels=kernels()), lambda x: reference_rotate(x, *exact), [x]
    )


@pytest.mark.native
def test_heads_inside_a_wider_row_need_no_copy_first():
    cos, sin = rotary_tables(5, 8, 10000.0, LIKE)
    wider = numbers(5, 2, 100)
    x = wider[..., 10:58].unflatten(-1, (6, 8))
    exact = reference_rotate(x, cos, sin)
    assert torch.allclose(rotate(x, cos, sin, kernels=kernels()), exact, atol=TOLERANCE)
