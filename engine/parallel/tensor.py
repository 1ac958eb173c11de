"""Tensor and sequence parallel twins of the model's layers (paper 3.2, Figure 3).

Each twin computes what its plain module in engine/model/transformer.py computes, on this rank's
part. With sequence parallelism the stream between sublayers is split along the sequence: `into`
gathers it and `out` scatters the summed result; without, `into` is the identity and `out` an
all-reduce. Gradients of weights are added straight into the chunk's flat buffer (no temporary per
micro-batch), so the twins are autograd functions over activations only.

Shapes as in the model; t marks a dimension divided by the tensor-parallel degree.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from engine.comm.collectives import Group, Work, all_gather, all_reduce, reduce_scatter
from engine.events.writer import EventWriter
from engine.ops.activation import gelu, swiglu
from engine.ops.native import Kernels
from engine.ops.norm import NormOp, Saved
from engine.parallel.chunked import Chunker, Pending
from engine.parallel.flat import Weight
from engine.parallel.witness import Witness


class TensorAxis:
    """The tensor-parallel group, and what crosses it."""

    def __init__(
        self,
        group: Group,
        *,
        sequence_parallel: bool,
        events: EventWriter,
        chunker: Chunker | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.group = group
        self.witness = witness or Witness()
        self.size, self.index = group.size, group.index
        self.split_sequence = sequence_parallel and group.size > 1
        self._events = events
        self.chunker = chunker if self.split_sequence else None
        self._owed: list[Callable[[], None]] | None = None

    def local_sequence(self, s: int) -> tuple[int, int]:
        """Positions of the stream held by this rank."""
        if not self.split_sequence:
            return 0, s
        each = s // self.size
        return self.index * each, (self.index + 1) * each

    def enter(self, x_sbh: Tensor) -> Tensor:
        """The whole sequence, where the stream is split; the input itself otherwise."""
        if not self.split_sequence:
            return x_sbh
        part = x_sbh.contiguous()
        self.witness.see(part)
        whole = part.new_empty((part.shape[0] * self.size, *part.shape[1:]))
        self._timed("all_gather", whole, all_gather(whole, part, self.group))
        return whole

    def enter_matmul(self, x_sbh: Tensor, weights_t: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The whole sequence times each weight [h, o], and the whole sequence; maybe in pieces."""
        if self.chunker is not None and self.chunker.fits(x_sbh.shape[0]):
            self.witness.see(x_sbh)
            return self.chunker.gather_matmul(x_sbh, weights_t)
        whole = self.enter(x_sbh)
        return [torch.matmul(whole, weight_t) for weight_t in weights_t], whole

    def start_leave(self, partial_sbh: Tensor) -> tuple[Tensor, Pending]:
        """Start summing partial results; the returned tensor is valid after `finish`."""
        if self.size == 1:
            return partial_sbh, []
        self.witness.see(partial_sbh)
        if not self.split_sequence:
            return partial_sbh, [(partial_sbh, all_reduce(partial_sbh, self.group))]
        s, *rest = partial_sbh.shape
        out = partial_sbh.new_empty((s // self.size, *rest))
        return out, [(partial_sbh, reduce_scatter(out, partial_sbh, self.group))]

    def start_leave_matmul(self, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Pending]:
        """Start the sum over ranks of sum_i x_i @ weight_t_i; in pieces if so set."""
        (x, weight_t), *others = pairs
        if self.chunker is not None and self.chunker.fits(x.shape[0] // self.size):
            return self.chunker.start_matmul_scatter(pairs)
        total = torch.matmul(x, weight_t)
        for x, weight_t in others:
            total.flatten(0, 1).addmm_(x.flatten(0, 1), weight_t)
        return self.start_leave(total)

    def leave(self, partial_sbh: Tensor) -> Tensor:
        """Sum partial results over the group; each rank keeps its part of a split sequence."""
        out, pending = self.start_leave(partial_sbh)
        self.finish(pending)
        return out

    def finish(self, pending: Pending) -> None:
        """Wait for what a `start_` method began."""
        op = "reduce_scatter" if self.split_sequence else "all_reduce"
        for summand, work in pending:
            self._timed(op, summand, work)

    def sum(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """All-reduce of small statistics, in place."""
        if self.size > 1:
            self.witness.see(tensor)
            self._timed("all_reduce", tensor, all_reduce(tensor, self.group, op=op))
        return tensor

    def weight_gradient(self, job: Callable[[], None]) -> None:
        """Do a weight gradient now, or keep it if the schedule splits the backward."""
        if self._owed is None:
            job()
        else:
            self._owed.append(job)

    @contextmanager
    def owing(self) -> Iterator[list[Callable[[], None]]]:
        """Inside, weight gradients are put on the yielded list instead of being computed."""
        self._owed = []
        try:
            yield self._owed
        finally:
            self._owed = None

    def _timed(self, op: str, tensor: Tensor, work: Work) -> None:
        size = tensor.numel() * tensor.element_size()
        with self._events.span("tp_comm", "tp", op=op, bytes=size):
            work.wait()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Neighbouring columns [s, b, ...] as one dense matrix; no copy if they lie so in memory."""
    first, cols = parts[0], sum(part.shape[-1] for part in parts)
    s, b = first.shape[:2]
    place, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for part in parts:
        apart = part.data_ptr() != place or part.untyped_storage().data_ptr() != storage
        if apart or part.stride() != (b * cols, cols, 1):
            return torch.cat(tuple(parts), -1)
        place += part.shape[-1] * part.element_size()
    return first.as_strided((s, b, cols), (b * cols, cols, 1))


def add_outer(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """Add dy [tokens, out]^T x [tokens, in] to grad [out, in]; no temporary if dtypes agree."""
    if grad.dtype == x.dtype:
        grad.addmm_(dy.t(), x)
    else:
        grad.add_(torch.mm(dy.t(), x))


class ParallelInto(nn.Module):
    """Column-parallel projections of one input: one gather, one GEMM for all of them."""

    def __init__(self, weights: list[Weight], biases: list[Weight], axis: TensorAxis) -> None:
        super().__init__()
        self.axis, self.weights, self.biases = axis, weights, biases
        self.sizes = [w.shape[0] for w in weights]

    def fused(self, parts: list[Weight]) -> tuple[int, int]:
        """The run of the flat buffer that neighbouring parameters occupy."""
        for left, right in pairwise(parts):
            assert left.start + left.numel == right.start, "projections must lie side by side"
        return parts[0].start, parts[-1].start + parts[-1].numel - parts[0].start

    def matrix(self, *, grad: bool = False) -> Tensor:
        """All weights (or gradients) as one [sum of outputs, hidden] matrix."""
        start, numel = self.fused(self.weights)
        flat = self.weights[0].flat
        run = flat.grad_view(start, numel) if grad else flat.data[start : start + numel]
        return run.view(-1, self.weights[0].shape[1])

    def vector(self, *, grad: bool = False) -> Tensor | None:
        """All biases as one vector."""
        if not self.biases:
            return None
        start, numel = self.fused(self.biases)
        flat = self.biases[0].flat
        return flat.grad_view(start, numel) if grad else flat.data[start : start + numel]

    def forward(self, x_sbh: Tensor) -> list[Tensor]:
        """One output [s, b, size / t] per projection."""
        return list(_Into.apply(x_sbh, self))

    def compute(self, x_sbh: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The outputs, and the whole sequence of inputs, which the backward needs."""
        (out,), whole = self.axis.enter_matmul(x_sbh, [self.matrix().t()])
        bias = self.vector()
        out = out if bias is None else out.add_(bias)
        return out.split(self.sizes, -1), whole

    def start_backward(self, whole: Tensor, dys: Sequence[Tensor]) -> tuple[Tensor, Pending]:
        """Start the sum of the input's gradient; the weight's is computed while it travels."""
        dy = joined(dys)
        dx, pending = self.axis.start_leave_matmul([(dy, self.matrix())])
        flat_dy = dy.flatten(0, 1)
        self.axis.weight_gradient(
            lambda: add_outer(self.matrix(grad=True), flat_dy, whole.flatten(0, 1))
        )
        bias = self.vector(grad=True)
        if bias is not None:
            bias.add_(flat_dy.sum(0))
        return dx, pending


class _Into(Function):
    @staticmethod
    def forward(ctx: Any, x_sbh: Tensor, op: ParallelInto) -> tuple[Tensor, ...]:
        parts, whole = op.compute(x_sbh)
        ctx.op = op
        ctx.save_for_backward(whole)
        return parts

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        op: ParallelInto = ctx.op
        (whole,) = ctx.saved_tensors
        dx, pending = op.start_backward(whole, dys)
        op.axis.finish(pending)
        return dx, None


class ParallelOut(nn.Module):
    """Row-parallel projections, summed before one reduction; biases are added once, after it."""

    def __init__(self, weights: list[Weight], biases: list[Weight], axis: TensorAxis) -> None:
        super().__init__()
        self.axis, self.weights, self.biases = axis, weights, biases

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Inputs [s, b, size / t]; the sum [s (or s/t), b, h]."""
        return _Out.apply(self, *inputs)

    def start(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Pending]:
        """Start the sum; without biases, which are added to what came of it."""
        weights_t = [weight.data.t() for weight in self.weights]
        return self.axis.start_leave_matmul(
            [(x.contiguous(), w) for x, w in zip(inputs, weights_t, strict=True)]
        )

    def compute_backward(self, inputs: Sequence[Tensor], dy: Tensor) -> list[Tensor]:
        """Gradients of the inputs; those of the weights are added up."""
        results, whole = self.axis.enter_matmul(dy, [weight.data for weight in self.weights])
        flat_dy = whole.flatten(0, 1)
        for x, weight in zip(inputs, self.weights, strict=True):
            self.axis.weight_gradient(partial(_add_weight, weight, flat_dy, x))
        return results

    def compute_bias_backward(self, dy: Tensor) -> None:
        """Add up the gradient of the biases."""
        if self.biases:
            total = dy.flatten(0, 1).sum(0)
            for bias in self.biases:
                bias.grad.add_(total)


class _Out(Function):
    @staticmethod
    def forward(ctx: Any, op: ParallelOut, *inputs: Tensor) -> Tensor:
        ctx.op = op
        ctx.save_for_backward(*inputs)
        out, pending = op.start(inputs)
        op.axis.finish(pending)
        for bias in op.biases:
            out += bias.data
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        op: ParallelOut = ctx.op
        dy = dy.contiguous()
        op.compute_bias_backward(dy)
        return (None, *op.compute_backward(ctx.saved_tensors, dy))


def _add_weight(weight: Weight, flat_dy: Tensor, x: Tensor) -> None:
    add_outer(weight.grad, flat_dy, x.flatten(0, 1))


class ParallelNorm(nn.Module):
    """LayerNorm or RMSNorm on the part of the sequence that this rank holds."""

    def __init__(self, op: NormOp, weight: Weight, bias: Weight | None) -> None:
        super().__init__()
        self.op, self.weight, self.bias = op, weight, bias

    def forward(self, x_sbh: Tensor, delta_sbh: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(normalised, s) of s = x + delta, in one pass where there is a kernel."""
        normed, stream = _Norm.apply(x_sbh, delta_sbh, self)
        return normed, x_sbh if stream is None else stream


class _Norm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, norm: ParallelNorm
    ) -> tuple[Tensor, Tensor | None]:
        bias = None if norm.bias is None else norm.bias.data
        y, saved = norm.op.forward(x, norm.weight.data, bias, delta)
        ctx.norm, ctx.alone = norm, delta is None
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return y, None if delta is None else saved.s

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dstream: Tensor | None) -> tuple[Tensor | None, ...]:
        norm: ParallelNorm = ctx.norm
        into = (norm.weight.grad, None if norm.bias is None else norm.bias.grad)
        saved = Saved(*ctx.saved_tensors)
        dx = norm.op.backward(dy, saved, norm.weight.data, into, dstream)
        return dx, None if ctx.alone else dx, None


class ParallelMlp(nn.Module):
    """The MLP's non-linearity in the form that was chosen; works on any part of the features."""

    def __init__(self, kernels: Kernels | None) -> None:
        super().__init__()
        self.kernels = kernels

    def forward(self, up: Tensor, gate: Tensor | None = None) -> Tensor:
        """GeLU (tanh form) of `up`, or SwiGLU with a gate."""
        if gate is None:
            return gelu(up, kernels=self.kernels)
        return swiglu(gate, up, kernels=self.kernels)
