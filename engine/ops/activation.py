"""Bias + GeLU (tanh form) and SwiGLU.

Shapes: x, gate, up [..., cols]; rows may lie apart (a part of a wider matrix), elements of a row
may not. Traffic per value (csrc/include/ms/activation.h): GeLU 2 elements forward and 3 backward,
SwiGLU 3 and 5. Only the inputs are kept for the backward.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from engine.ops.native import Kernels
from engine.ops.norm import wide


def gelu(x: Tensor, bias: Tensor | None = None, *, kernels: Kernels | None = None) -> Tensor:
    """GeLU in its tanh form of x + bias."""
    if kernels is not None and kernels.fit(x):
        return _Gelu.apply(x, bias, kernels)
    return reference_gelu(x, bias)


def swiglu(gate: Tensor, up: Tensor, *, kernels: Kernels | None = None) -> Tensor:
    """silu(gate) * up."""
    if kernels is not None and kernels.fit(gate):
        return _Swiglu.apply(gate, up, kernels)
    return reference_swiglu(gate, up)


def reference_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same in plain torch."""
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


def reference_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The same in plain torch."""
    return F.silu(gate) * up


def rows_of(x: Tensor) -> Tensor:
    """x as a matrix with dense rows; a view where the strides allow it."""
    x = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
    return x.reshape(-1, x.shape[-1])


class _Gelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kernels: Kernels) -> Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        kernels.ops.gelu_forward(rows_of(x), bias, y)
        ctx.kernels = kernels
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, bias = ctx.saved_tensors
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dbias = None if bias is None else torch.zeros_like(bias, dtype=wide(bias.dtype))
        ctx.kernels.ops.gelu_backward(dy.contiguous(), rows_of(x), bias, rows_of(dx), dbias)
        return dx, None if dbias is None else dbias.to(x.dtype), None


class _Swiglu(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kernels: Kernels) -> Tensor:
        y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        kernels.ops.swiglu_forward(*_alike(gate, up), y)
        ctx.kernels = kernels
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        # side by side, in the order of the projections, so that who made both need not join them
        both = torch.empty((*up.shape[:-1], 2 * up.shape[-1]), dtype=up.dtype, device=up.device)
        dup, dgate = both.chunk(2, -1)
        rows = _alike(gate, up)
        ctx.kernels.ops.swiglu_backward(dy.contiguous(), *rows, rows_of(dgate), rows_of(dup))
        return dgate, dup, None


def _alike(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Both as matrices with the same distance between rows."""
    a, b = rows_of(gate), rows_of(up)
    return (a, b) if a.stride() == b.stride() else (a.contiguous(), b.contiguous())
