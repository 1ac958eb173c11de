"""A micro-batch in two halves: the tensor-parallel sums of one travel while the other computes.

A GEMM that is followed by a sum over the tensor-parallel group has nothing to hide it behind within
its own micro-batch, since the next sublayer needs the sum. The other half of the micro-batch does
not: sublayer after sublayer, a half starts its sum and the other one computes (as in Domino,
arXiv:2409.15241). The backward goes the same way back. Without `ahead` every sum is waited for at
once: the same numbers bit by bit, nothing hidden.

Autograd would run all of one half before the other, so a sublayer is two small graphs, and their
backwards are called here one by one:

    before   the sum of the sublayer before: bias, dropout, then the norm of the stream
    inside   the cores; the projections around them are called without autograd, which must not
             touch a sum that is still under way

Shapes: s (or s / t) sequence, b micro-batch, h hidden.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from engine.model.transformer import Block, MicroBatch, Sublayer, added
from engine.parallel.chunked import Pending
from engine.parallel.tensor import ParallelInto, ParallelOut, TensorAxis


class _Before(NamedTuple):
    """Graph from (stream, total) to (normed, stream), or to the stack's output alone."""

    inputs: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]

    def back(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Gradients of the inputs."""
        return torch.autograd.grad(self.outs, self.inputs, grads)


class _Inside(NamedTuple):
    """Graph of the cores, with what the projections around it need for their backward."""

    sub: Sublayer
    whole: Tensor
    parts: list[Tensor]
    mixed: list[Tensor]

    def back(self, dtotal: Tensor) -> tuple[Tensor, Pending]:
        """Start the sum that is the gradient of the norm's output."""
        into, out = _ends(self.sub)
        dmixed = out.compute_backward([x.detach() for x in self.mixed], dtotal.contiguous())
        dparts = torch.autograd.grad(self.mixed, self.parts, dmixed)
        return into.start_backward(self.whole, dparts)


def _ends(sub: Sublayer) -> tuple[ParallelInto, ParallelOut]:
    into, out = sub.into, sub.out
    assert isinstance(into, ParallelInto), "projections have been replaced by their twins"
    assert isinstance(out, ParallelOut), "projections have been replaced by their twins"
    return into, out


class _Half:
    """One half of a micro-batch on its way through the layers, and what its backward needs."""

    def __init__(self, stream: Tensor, micro: MicroBatch) -> None:
        self.stream, self.micro = stream, micro
        self.total = stream
        self.last: Sublayer | None = None
        """The sublayer whose sum `total` is; before the first there is none."""
        self.pending: Pending = []
        self.before: list[_Before] = []
        self.inside: list[_Inside] = []


class Halves(nn.Module):
    """Takes the place of a chunk's layers."""

    def __init__(self, layers: nn.ModuleDict, axis: TensorAxis, *, ahead: bool) -> None:
        super().__init__()
        self.layers, self.axis, self.ahead = layers, axis, ahead

    def sublayers(self) -> list[Sublayer]:
        """In forward order."""
        blocks = [block for block in self.layers.values() if isinstance(block, Block)]
        return [sub for block in blocks for sub in block.children() if isinstance(sub, Sublayer)]

    def forward(
        self, x_sbh: Tensor, delta_sbh: Tensor | None, micro: MicroBatch
    ) -> tuple[Tensor, None]:
        """As the layers would, one after the other; nothing is left to be added to the stream."""
        assert delta_sbh is None, "the first layer is given the stream alone"
        if torch.is_grad_enabled():
            return _Stack.apply(x_sbh, self, micro), None
        return self.run(x_sbh, micro)[0], None

    def run(self, x_sbh: Tensor, micro: MicroBatch) -> tuple[Tensor, list[_Half]]:
        """The stream after all layers [s, b, h], and what its backward needs."""
        halves = [_Half(x, m) for x, m in zip(_cut(x_sbh), _cut_micro(micro), strict=True)]
        for sub in self.sublayers():
            for half in halves:
                self._go_inside(half, sub, self._go_before(half, sub))
        outs = [self._go_before(half, None) for half in halves]
        return torch.cat(outs, 1), halves

    def _go_before(self, half: _Half, sub: Sublayer | None) -> Tensor:
        """The norm of this sublayer, or the stream if there is no further one."""
        self.axis.finish(half.pending)
        stream = _leaf(half.stream)
        inputs: tuple[Tensor, ...] = (stream,)
        delta = None
        if half.last is not None:
            total, out = _leaf(half.total), _ends(half.last)[1]
            delta = half.last.drop(_Bias.apply(total, out) if out.biases else total, half.micro)
            inputs = (stream, total)
        if sub is None:
            outs: tuple[Tensor, ...] = (added(stream, delta),)
        else:
            outs = sub.norm(stream, delta)
            half.stream = outs[1]
        if torch.is_grad_enabled():
            half.before.append(_Before(inputs, outs))
        return outs[0].detach()

    def _go_inside(self, half: _Half, sub: Sublayer, normed: Tensor) -> None:
        """Everything of a sublayer between its norm and its sum, which is started."""
        into, out = _ends(sub)
        parts, whole = into.compute(normed)
        leaves = [_leaf(part) for part in parts]
        mixed = sub.mix(leaves)
        half.total, half.pending = out.start([x.detach() for x in mixed])
        half.last = sub
        if torch.is_grad_enabled():
            half.inside.append(_Inside(sub, whole, leaves, mixed))
        if not self.ahead:
            self.axis.finish(half.pending)
            half.pending = []

    def go_back(self, halves: list[_Half], dout: Tensor) -> Tensor:
        """The backward of `run`: from the gradient of its result to that of its input."""
        ways = [_Back(half, part) for half, part in zip(halves, _cut(dout), strict=True)]
        for number, _ in enumerate(self.sublayers()):
            for way in ways:
                if number:  # the sum that the sublayer behind started
                    self.axis.finish(way.pending)
                    way.through_norm()
                way.through_inside()
                if not self.ahead:
                    self.axis.finish(way.pending)
                    way.pending = []
        for way in ways:
            self.axis.finish(way.pending)
            way.through_norm()
        return torch.cat([way.dstream for way in ways], 1)


class _Back:
    """A half on its way back: the gradients it has come to."""

    def __init__(self, half: _Half, dout: Tensor) -> None:
        self._half = half
        self.pending: Pending = []
        self.dstream, *self._dtotal = half.before.pop().back((dout,))

    def through_inside(self) -> None:
        """From a sublayer's sum to its norm; the gradient there is still under way."""
        self._dnormed, self.pending = self._half.inside.pop().back(self._dtotal[0])

    def through_norm(self) -> None:
        """From a sublayer's norm to the sum of the one before; the gradient has come."""
        grads = (self._dnormed, self.dstream)
        self.dstream, *self._dtotal = self._half.before.pop().back(grads)


class _Stack(Function):
    """All layers of a chunk as one node of the chunk's graph."""

    @staticmethod
    def forward(ctx: Any, x_sbh: Tensor, stack: Halves, micro: MicroBatch) -> Tensor:
        ctx.stack = stack
        with torch.enable_grad():
            out, ctx.halves = stack.run(x_sbh, micro)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None]:
        halves, ctx.halves = ctx.halves, []
        return ctx.stack.go_back(halves, dout), None, None


class _Bias(Function):
    """Adds the biases to a sum that has come."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, op: ParallelOut) -> Tensor:
        ctx.op = op
        for bias in op.biases:
            total = total + bias.data
        return total

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        dy = dy.contiguous()
        ctx.op.compute_bias_backward(dy)
        return dy, None


def _leaf(x: Tensor) -> Tensor:
    """The same numbers at the beginning of a graph of their own."""
    return x.detach().requires_grad_(torch.is_grad_enabled())


def _cut(x_sbh: Tensor) -> list[Tensor]:
    return [part.contiguous() for part in x_sbh.detach().chunk(2, 1)]


def _cut_micro(micro: MicroBatch) -> list[MicroBatch]:
    parts = zip(
        micro.tokens_sb.chunk(2, 1), micro.targets_sb.chunk(2, 1), micro.sample_b.chunk(2),
        strict=True,
    )  # fmt: skip
    return [MicroBatch(*part, micro.step) for part in parts]
