"""Softmax cross-entropy over a vocabulary that is divided over ranks.

Three numbers a row cross the ranks (largest logit, sum of exponentials, the target's logit);
logits are never gathered. Shapes: logits [rows, cols], the columns first .. first + cols of the
vocabulary; targets [rows] in the whole vocabulary. Traffic per logit
(csrc/include/ms/cross_entropy.h): 1 element for the statistics, 2 for the gradient, which may
overwrite the logits.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.ops.native import Kernels
from engine.ops.norm import wide


class Stats(NamedTuple):
    """Per row, in at least fp32."""

    largest: Tensor
    total: Tensor
    """Sum of exp(logit - largest)."""
    target: Tensor
    """The target's logit; 0 where its column is held elsewhere."""

    def losses(self) -> Tensor:
        """Negative log-likelihood of each row."""
        return self.total.log() + (self.largest - self.target)


def local_stats(
    logits: Tensor, targets: Tensor, first: int, *, kernels: Kernels | None = None
) -> Stats:
    """Statistics of the columns held here."""
    if kernels is None or not kernels.fit(logits):
        return reference_stats(logits, targets, first)
    stats = Stats(
        *torch.empty((3, logits.shape[0]), dtype=wide(logits.dtype), device=logits.device)
    )
    kernels.ops.cross_entropy_stats(logits, targets, *stats, first)
    return stats


def agree(
    stats: Stats, largest_of: Callable[[Tensor], Tensor], sum_of: Callable[[Tensor], Tensor]
) -> Stats:
    """Statistics of the whole vocabulary; the callables reduce over a tensor's owners in place."""
    largest = largest_of(stats.largest.clone())
    total = stats.total * (stats.largest - largest).exp()
    total, target = sum_of(torch.stack((total, stats.target)))
    return Stats(largest, total, target)


def gradient_(
    logits: Tensor, targets: Tensor, stats: Stats, scale: Tensor, first: int,
    *, kernels: Kernels | None = None,
) -> Tensor:  # fmt: skip
    """scale * (softmax - one-hot); stats are those of all columns. The logits are used up."""
    scale = scale.to(stats.total.dtype)
    if kernels is None or not kernels.fit(logits):
        return reference_gradient(logits, targets, stats, scale, first).to(logits.dtype)
    kernels.ops.cross_entropy_gradient(
        logits, targets, stats.largest, stats.total, scale, logits, first
    )
    return logits


def reference_stats(logits: Tensor, targets: Tensor, first: int) -> Stats:
    """`local_stats`, written for reading."""
    values = logits.to(wide(logits.dtype))
    largest = values.amax(-1)
    total = (values - largest.unsqueeze(-1)).exp_().sum(-1)
    column, mine = _own_column(values, targets, first)
    target = values.gather(1, column).squeeze(1).masked_fill(~mine, 0.0)
    return Stats(largest, total, target)


def reference_gradient(
    logits: Tensor, targets: Tensor, stats: Stats, scale: Tensor, first: int
) -> Tensor:
    """`gradient_`, written for reading; a new tensor in at least fp32."""
    values = logits.to(wide(logits.dtype))
    softmax = (values - stats.largest.unsqueeze(-1)).exp_().div_(stats.total.unsqueeze(-1))
    column, mine = _own_column(values, targets, first)
    return softmax.scatter_add_(1, column, -mine.to(softmax.dtype).unsqueeze(1)).mul_(scale)


def _own_column(logits: Tensor, targets: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The target's column [rows, 1] (0 where it is not held here), and whether it is held."""
    mine = (targets >= first) & (targets < first + logits.shape[1])
    return (targets - first).masked_fill(~mine, 0).unsqueeze(1), mine
