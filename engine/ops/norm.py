"""LayerNorm and RMSNorm, with the addition of a residual in front of them.

Shapes: rows of `cols` elements; x, residual, y [..., cols]; weight, bias [cols]. Traffic per value
(csrc/include/ms/norm.h): forward 2 elements, 4 with a residual; backward 3, 4 with a gradient from
the residual stream. Weight gradients are added straight into the caller's buffers, in an order
that depends on the sizes only.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from engine.ops.native import Kernels

Kind = Literal["layernorm", "rmsnorm"]
_CODE = {"layernorm": 0, "rmsnorm": 1}


class Saved(NamedTuple):
    """What the backward needs: the normalised sum and its statistics (in at least fp32)."""

    s: Tensor
    mean: Tensor | None
    rstd: Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision of sums over values of `dtype`: fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, op: "NormOp", residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(y, s): s = x + residual, y = s normalised; differentiable in every tensor."""
    if residual is None:
        return _Norm.apply(x, None, weight, bias, op)[0], x
    return _Norm.apply(x, residual, weight, bias, op)


def reference_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, op: "NormOp", residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, written for reading."""
    s = x if residual is None else x + residual
    values = s.to(wide(s.dtype))
    if op.kind == "layernorm":
        values = values - values.mean(-1, keepdim=True)
    y = values / (values.square().mean(-1, keepdim=True) + op.eps).sqrt() * weight
    return (y if bias is None else y + bias).to(s.dtype), s


class NormOp(NamedTuple):
    """A kind of norm in the form that was chosen; forward and backward as separate steps."""

    kind: Kind
    eps: float
    kernels: Kernels | None = None

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None
    ) -> tuple[Tensor, Saved]:
        """The normalised values, and what the backward needs of them."""
        if self.kernels is not None and self.kernels.fit(x):
            return self._native_forward(x, weight, bias, residual)
        s = x if residual is None else x + residual
        return (
            _layer_norm(s, weight, bias, self)
            if self.kind == "layernorm"
            else _rms(s, weight, self)
        )

    def backward(
        self, dy: Tensor, saved: Saved, weight: Tensor, into: tuple[Tensor, Tensor | None],
        dtotal: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Gradient of s; adds the gradients of weight and bias to the two tensors of `into`.

        dtotal is the gradient that reaches s from elsewhere; it is added.
        """
        if self.kernels is not None and self.kernels.fit(saved.s):
            dx = torch.empty_like(saved.s)
            dy, dtotal = dy.contiguous(), None if dtotal is None else dtotal.contiguous()
            self.kernels.ops.norm_backward(
                _CODE[self.kind], dy, dtotal, saved.s, weight, saved.mean, saved.rstd, dx, *into
            )
            return dx
        back = _layer_norm_backward if self.kind == "layernorm" else _rms_backward
        dx = back(dy, saved, weight, into)
        return dx if dtotal is None else dx.add_(dtotal)

    def _native_forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Saved]:
        assert self.kernels is not None, "only called where there are kernels"
        x = x.contiguous()
        y = torch.empty_like(x)
        rstd = torch.empty(x.shape[:-1], dtype=wide(x.dtype), device=x.device)
        mean = torch.empty_like(rstd) if self.kind == "layernorm" else None
        s = x
        if residual is not None:
            residual, s = residual.contiguous(), torch.empty_like(x)
        self.kernels.ops.norm_forward(
            _CODE[self.kind], x, residual, weight, bias, y, None if residual is None else s, mean,
            rstd, self.eps,
        )  # fmt: skip
        return y, Saved(s, mean, rstd)


class _Norm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        op: NormOp,
    ) -> tuple[Tensor, Tensor | None]:
        y, saved = op.forward(x, weight, bias, residual)
        ctx.op, ctx.has_bias, ctx.alone = op, bias is not None, residual is None
        ctx.save_for_backward(*saved, weight)
        ctx.set_materialize_grads(False)
        return y, None if residual is None else saved.s

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dtotal: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return dtotal, None if ctx.alone else dtotal, None, None, None
        *parts, weight = ctx.saved_tensors
        precision = wide(weight.dtype)
        dweight = torch.zeros_like(weight, dtype=precision)
        dbias = torch.zeros_like(dweight) if ctx.has_bias else None
        dx = ctx.op.backward(dy, Saved(*parts), weight, (dweight, dbias), dtotal)
        dbias = None if dbias is None else dbias.to(weight.dtype)
        return dx, None if ctx.alone else dx, dweight.to(weight.dtype), dbias, None


def _layer_norm(s: Tensor, weight: Tensor, bias: Tensor | None, op: NormOp) -> tuple[Tensor, Saved]:
    y, mean, rstd = torch.ops.aten.native_layer_norm(s, list(weight.shape), weight, bias, op.eps)
    return y, Saved(s, mean, rstd)


def _layer_norm_backward(
    dy: Tensor, saved: Saved, weight: Tensor, into: tuple[Tensor, Tensor | None]
) -> Tensor:
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy.contiguous(), saved.s, list(weight.shape), saved.mean, saved.rstd, weight,
        None if into[1] is None else weight, [True, True, into[1] is not None],
    )  # fmt: skip
    into[0].add_(dweight)
    if into[1] is not None:
        into[1].add_(dbias)
    return dx


def _rms(s: Tensor, weight: Tensor, op: NormOp) -> tuple[Tensor, Saved]:
    values = s.to(wide(s.dtype))
    power = torch.linalg.vector_norm(values, dim=-1, keepdim=True).square_()
    rstd = power.div_(s.shape[-1]).add_(op.eps).rsqrt_()
    return (values * rstd).to(s.dtype).mul_(weight), Saved(s, None, rstd)


def _rms_backward(
    dy: Tensor, saved: Saved, weight: Tensor, into: tuple[Tensor, Tensor | None]
) -> Tensor:
    values = saved.s.to(wide(saved.s.dtype))
    normed = values * saved.rstd
    product = dy * normed
    into[0].add_(product.flatten(0, -2).sum(0))
    mean = (product @ weight.to(product.dtype)).div_(saved.s.shape[-1]).unsqueeze(-1)
    dx = (dy * weight).to(values.dtype).addcmul_(normed, mean, value=-1.0).mul_(saved.rstd)
    return dx.to(saved.s.dtype)
