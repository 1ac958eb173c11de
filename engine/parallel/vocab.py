"""Embedding, output head and cross-entropy with the vocabulary divided over the tp ranks.

A rank looks up the rows it holds and the partial results are summed; the loss needs three numbers a
token (largest logit, sum of exponentials, the target's logit), so logits are never gathered.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from engine.model.transformer import Dropout, MicroBatch
from engine.ops.cross_entropy import Stats, agree, gradient_, local_stats
from engine.ops.native import Kernels
from engine.parallel.flat import Weight
from engine.parallel.tensor import ParallelNorm, TensorAxis, add_outer


class ParallelEmbedding(nn.Module):
    """Rows of the token matrix [v / t, h], positions, dropout."""

    def __init__(
        self, weight: Weight, position: Weight | None, drop: Dropout, axis: TensorAxis
    ) -> None:
        super().__init__()
        self.weight, self.position, self.drop, self.axis = weight, position, drop, axis
        self.anchor = torch.zeros((), requires_grad=True)
        """A leaf that keeps the autograd graph alive: weights are not part of it."""

    def forward(self, micro: MicroBatch) -> Tensor:
        """[s, b] token numbers to this rank's part of the stream."""
        return self.drop(_Embedding.apply(self.anchor, micro.tokens_sb, self), micro)


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens_sb: Tensor, op: ParallelEmbedding) -> Tensor:
        first, stop = op.weight.box[0]
        local = tokens_sb - first
        outside = (tokens_sb < first) | (tokens_sb >= stop) if op.axis.size > 1 else None
        if outside is not None:
            local = local.masked_fill(outside, 0)
        x = op.weight.data.index_select(0, local.flatten()).unflatten(0, local.shape)
        if outside is not None:
            x.masked_fill_(outside.unsqueeze(-1), 0.0)
        out = op.axis.leave(x)
        begin, end = op.axis.local_sequence(tokens_sb.shape[0])
        if op.position is not None:
            out += op.position.data[begin:end, None]
        ctx.op, ctx.local, ctx.outside, ctx.span = op, local, outside, (begin, end)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None]:
        op: ParallelEmbedding = ctx.op
        if op.position is not None:
            begin, end = ctx.span
            op.position.grad[begin:end].add_(dy.sum(1))
        whole = op.axis.enter(dy)
        if ctx.outside is not None:
            whole = whole.masked_fill(ctx.outside.unsqueeze(-1), 0.0)
        grad = op.weight.grad
        grad.index_add_(0, ctx.local.flatten(), whole.flatten(0, 1).to(grad.dtype))
        return None, None, None


class ParallelHead(nn.Module):
    """Final norm, this rank's rows of the output matrix, summed cross-entropy."""

    def __init__(
        self, norm: ParallelNorm, weight: Weight, axis: TensorAxis, kernels: Kernels | None
    ) -> None:
        super().__init__()
        self.norm, self.weight, self.axis, self.kernels = norm, weight, axis, kernels

    def forward(self, x_sbh: Tensor, delta_sbh: Tensor | None, micro: MicroBatch) -> Tensor:
        """Sum over all tokens of the negative log-likelihood, equal on every rank of the group."""
        return _HeadLoss.apply(self.norm(x_sbh, delta_sbh)[0], micro.targets_sb, self)


class _HeadLoss(Function):
    @staticmethod
    def forward(ctx: Any, x_sbh: Tensor, targets_sb: Tensor, op: ParallelHead) -> Tensor:
        whole = op.axis.enter(x_sbh).flatten(0, 1)
        logits = whole @ op.weight.data.t()
        targets, first = targets_sb.flatten(), op.weight.box[0][0]
        stats = local_stats(logits, targets, first, kernels=op.kernels)
        if op.axis.size > 1:
            stats = agree(stats, lambda largest: op.axis.sum(largest, "max"), op.axis.sum)
        ctx.op, ctx.shape_sb, ctx.first = op, targets_sb.shape, first
        ctx.save_for_backward(whole, logits, targets, *stats)
        return stats.losses().sum()

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None]:
        op: ParallelHead = ctx.op
        whole, logits, targets, *stats = ctx.saved_tensors
        # in the buffer of the logits: nobody else needs them
        grad = gradient_(logits, targets, Stats(*stats), dloss, ctx.first, kernels=op.kernels)
        partial = (grad @ op.weight.data).unflatten(0, ctx.shape_sb)
        dx, pending = op.axis.start_leave(partial)
        op.axis.weight_gradient(lambda: add_outer(op.weight.grad, grad, whole))
        op.axis.finish(pending)
        return dx, None, None
