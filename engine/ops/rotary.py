"""Rotary positions: feature pairs (i, i + d/2) are turned by an angle that grows with position.

Traffic: 2 elements a value, forward and backward (csrc/include/ms/rotary.h).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from engine.ops.activation import rows_of
from engine.ops.native import Kernels


def rotary_tables(s: int, d: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin, [s, 1, 1, d / 2], in the dtype and on the device of `like`."""
    exponent = torch.arange(0, d, 2, device=like.device, dtype=torch.float64) / d
    angle = torch.outer(torch.arange(s, device=like.device, dtype=torch.float64), theta**-exponent)
    return angle.cos()[:, None, None].to(like.dtype), angle.sin()[:, None, None].to(like.dtype)


def rotate(x_sbnd: Tensor, cos: Tensor, sin: Tensor, *, kernels: Kernels | None = None) -> Tensor:
    """Apply the rotation to queries or keys; rows [n, d] may lie apart, but must be dense."""
    if kernels is not None and kernels.fit(x_sbnd):
        return _Rotate.apply(x_sbnd, cos, sin, kernels)
    return reference_rotate(x_sbnd, cos, sin)


def reference_rotate(x_sbnd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same in plain torch."""
    a, b = x_sbnd.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels = kernels
        return _turn(x, cos, sin, kernels, inverse=False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(dy, cos, sin, ctx.kernels, inverse=True), None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, kernels: Kernels, *, inverse: bool) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s, b, n, d = x.shape
    rows = rows_of(x.flatten(2))
    kernels.ops.rotary(rows, cos, sin, y.view(s * b, n * d), b, d, inverse)
    return y
