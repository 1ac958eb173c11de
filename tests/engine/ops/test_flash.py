"""The choice of an attention kernel, and what is said to it; the kernels themselves need a GPU."""

import types

import pytest
import torch

from engine.ops import flash
from engine.ops.attention import reference_attention
from engine.ops.flash import PACKAGES, call, decide, is_installed, window_size

FA3, FA4, FA2 = PACKAGES


@pytest.mark.parametrize(
    ("capability", "there", "chosen"),
    [
        ((9, 0), {"flash_attn", "flash_attn_interface", "flash_attn.cute"}, FA3),
        ((9, 0), {"flash_attn", "flash_attn.cute"}, FA4),
        ((10, 0), {"flash_attn", "flash_attn_interface", "flash_attn.cute"}, FA4),
        ((8, 0), {"flash_attn", "flash_attn_interface", "flash_attn.cute"}, FA2),
        ((8, 0), {"flash_attn.cute"}, None),  # its backward does not run there
        ((7, 0), {"flash_attn"}, None),
        ((9, 0), set(), None),
    ],
)
def test_the_fastest_package_that_serves_the_device_is_chosen(capability, there, chosen):
    assert decide(capability, there.__contains__) is chosen


def test_a_window_counts_the_keys_before_the_query():
    assert window_size(FA2, 4) == (3, 0)
    assert window_size(FA2, 0) == (-1, -1)
    assert window_size(FA4, 0) == (None, None)
    assert window_size(FA4, 1) == (0, 0)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
@pytest.mark.parametrize("with_lse", [False, True])
def test_the_arguments_mean_what_the_reference_means(package, with_lse):
    """A function with a package's signature, on the CPU, from the meaning of its arguments."""

    def function(q, k, v, *, causal, window_size):
        assert causal
        left, right = window_size
        window = 0 if left == package.no_limit else left + 1
        assert right == (0 if window else package.no_limit)
        s_first = [t.transpose(0, 1) for t in (q, k, v)]
        s, b, n, d = s_first[0].shape
        out = reference_attention(*s_first, window=window).view(s, b, n, d).transpose(0, 1)
        return (out, None) if with_lse else out

    q, k, v = (torch.randn(2, 6, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    for window in (0, 1, 3):
        expected = reference_attention(*(t.transpose(0, 1) for t in (q, k, v)), window=window)
        got = call(package, function, q, k, v, window)
        assert torch.equal(got.transpose(0, 1).reshape(6, 2, 32), expected)


@pytest.mark.parametrize("can", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_gradients_are_added_up_in_a_fixed_order_if_so_wished(monkeypatch, can, wanted):
    """FlashAttention's backward adds up dq by atomics unless it is told otherwise."""
    told: dict[str, bool] = {}

    def with_it(q, k, v, causal=False, window_size=(-1, -1), deterministic=False):
        told["deterministic"] = deterministic
        return q

    def without_it(q, k, v, causal=False, window_size=(-1, -1)):
        return q

    module = types.SimpleNamespace(flash_attn_func=with_it if can else without_it)
    monkeypatch.setattr(flash, "decide", lambda *_: FA2)
    monkeypatch.setattr(flash, "cuda_capability", lambda _: (9, 0))
    monkeypatch.setattr(flash.importlib, "import_module", lambda _: module)
    monkeypatch.setattr(flash.torch, "are_deterministic_algorithms_enabled", lambda: wanted)
    made = flash.kernel.__wrapped__(torch.device("cpu"))
    assert (made is None) == (wanted and not can)
    if made is not None:
        q = torch.ones(1, 2, 1, 4)
        made(q, q, q, 0)
        assert told == ({"deterministic": wanted} if can else {})


def test_what_is_not_there_is_not_installed():
    assert is_installed("json")
    assert not is_installed("no_such_package_at_all")
    assert not is_installed("no_such_package_at_all.cute")
