"""Attention against its reading form, forward and backward, for every window and grouping."""

import pytest
import torch

from engine.ops.attention import attention, reference_attention, window_mask

TOLERANCE = 1e-12
S, B, N, D = 9, 2, 6, 4


def inputs(s: int, kv_heads: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(s)
    sizes = [(s, B, N, D), (s, B, kv_heads, D), (s, B, kv_heads, D)]
    made = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return [t.to(dtype).requires_grad_() for t in made]


@pytest.mark.parametrize("window", [0, 1, 2, S - 1, S, S + 5])
@pytest.mark.parametrize("kv_heads", [N, 3, 1])
def test_fused_and_reading_form_agree_forward_and_backward(window, kv_heads):
    q, k, v = inputs(S, kv_heads)
    out = attention(q, k, v, window=window)
    expected = reference_attention(q, k, v, window=window)
    assert out.shape == (S, B, N * D)
    assert float((out - expected).detach().abs().max()) < TOLERANCE
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
    found = torch.autograd.grad(out, (q, k, v), cotangent)
    wanted = torch.autograd.grad(expected, (q, k, v), cotangent)
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) < TOLERANCE


@pytest.mark.parametrize("window", [0, 4])
def test_half_precision_stays_within_its_rounding(window):
    q, k, v = inputs(16, 2, torch.bfloat16)
    out = attention(q, k, v, window=window).double()
    exact = reference_attention(q.double(), k.double(), v.double(), window=window)
    assert float((out - exact).detach().abs().max()) < 2**-6


def test_a_window_of_one_returns_each_token_its_own_value():
    q, k, v = inputs(S, N)
    assert torch.allclose(attention(q, k, v, window=1), v.reshape(S, B, N * D), atol=TOLERANCE)


def test_a_window_as_long_as_the_sequence_is_full_attention():
    q, k, v = inputs(S, N)
    full = attention(q, k, v, window=0)
    assert torch.equal(attention(q, k, v, window=S), full)
    assert torch.equal(attention(q, k, v, window=S + 1), full)


@pytest.mark.parametrize("window", [0, 3])
def test_no_query_sees_what_follows_or_lies_before_its_window(window):
    q, k, v = inputs(S, N)
    before = attention(q, k, v, window=window)
    changed = v.detach().clone()
    changed[5] += 100.0
    after = attention(q, k, changed, window=window)
    moved = (after - before).abs().amax((1, 2)) > 1e-6
    last = S if window == 0 else 5 + window
    assert moved.tolist() == [5 <= i < last for i in range(S)]


def test_equal_scores_average_the_values_in_sight():
    q, k, v = inputs(S, N)
    out = attention(torch.zeros_like(q), k, v, window=4)
    for i in range(S):
        mean = v[max(0, i - 3) : i + 1].mean(0).reshape(B, N * D)
        assert torch.allclose(out[i], mean, atol=TOLERANCE)


def test_query_heads_share_key_heads_in_blocks():
    """Head i reads key/value head i // (n / g), as in Llama; repeating changes nothing."""
    q, k, v = inputs(S, 3)
    repeated = [t.repeat_interleave(2, dim=2) for t in (k, v)]
    grouped = attention(q, k, v, window=0)
    assert torch.allclose(grouped, attention(q, *repeated, window=0), atol=TOLERANCE)


def test_the_mask_counts_the_token_itself():
    mask = window_mask(5, 2, torch.device("cpu"))
    assert mask.sum(1).tolist() == [1, 2, 2, 2, 2]
    assert bool(mask.diagonal().all())
