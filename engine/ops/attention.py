"""Causal and sliding-window attention.

Forms: on CUDA in half precision a FlashAttention package where one is installed (`flash.py`), else
the kernels built into torch (its variable length one for a window, sm_80+); elsewhere torch's fused
kernel, with a mask for a window. Shapes: s sequence, b micro-batch, n heads, g key/value heads, d
head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.ops.flash import kernel


def attention(q_sbnd: Tensor, k_sbgd: Tensor, v_sbgd: Tensor, *, window: int) -> Tensor:
    """Each query sees itself and, up to `window` tokens in all (0 = no limit), what comes before.

    Returns [s, b, n * d]. Key/value heads are shared by n / g query heads each.
    """
    s, b, n, d = q_sbnd.shape
    limited = 0 < window < s
    if q_sbnd.is_cuda and q_sbnd.dtype in (torch.bfloat16, torch.float16):
        flash = kernel(q_sbnd.device)
        if flash is not None:
            q, k, v = (t.transpose(0, 1) for t in (q_sbnd, k_sbgd, v_sbgd))
            out = flash(q, k, v, window if limited else 0)
            return out.transpose(0, 1).reshape(s, b, n * d)
        if limited:
            return _varlen_window(q_sbnd, k_sbgd, v_sbgd, window)
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q_sbnd, k_sbgd, v_sbgd))
    mask = window_mask(s, window, q.device) if limited else None
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=k.shape[1] != n
    )
    return out.permute(2, 0, 1, 3).reshape(s, b, n * d)


def window_mask(s: int, window: int, device: torch.device) -> Tensor:
    """[s, s] booleans: query i may see key j if i - window < j <= i."""
    position = torch.arange(s, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)


def reference_attention(q_sbnd: Tensor, k_sbgd: Tensor, v_sbgd: Tensor, *, window: int) -> Tensor:
    """The same, written for reading: scores, mask, softmax, mix."""
    s, b, n, d = q_sbnd.shape
    repeat = n // k_sbgd.shape[2]
    q = q_sbnd.permute(1, 2, 0, 3)
    k, v = (t.repeat_interleave(repeat, dim=2).permute(1, 2, 0, 3) for t in (k_sbgd, v_sbgd))
    scores = q @ k.transpose(-1, -2) / d**0.5
    mask = window_mask(s, window or s, q.device)
    out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
    return out.permute(2, 0, 1, 3).reshape(s, b, n * d)


def _varlen_window(q_sbnd: Tensor, k_sbgd: Tensor, v_sbgd: Tensor, window: int) -> Tensor:
    """FlashAttention-2 inside torch: sequences packed one after the other, window to the left."""
    from torch.nn.attention.varlen import varlen_attn

    s, b, n, d = q_sbnd.shape
    q, k, v = (t.transpose(0, 1).reshape(b * s, t.shape[2], d) for t in (q_sbnd, k_sbgd, v_sbgd))
    starts = torch.arange(0, (b + 1) * s, s, device=q_sbnd.device, dtype=torch.int32)
    out = varlen_attn(
        q, k, v, starts, starts, s, s, window_size=(window - 1, 0), enable_gqa=k_sbgd.shape[2] != n
    )
    assert isinstance(out, Tensor), "the log-sum-exp comes along only where it is asked for"
    return out.reshape(b, s, n * d).transpose(0, 1)
