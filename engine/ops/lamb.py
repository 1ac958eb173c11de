"""LAMB on a flat shard in two phases: moments and norms, then the step with trust ratios.

Between the phases the norms of a tensor's parts are summed over the ranks that hold them, and a
ratio is made of the sums: engine/optim/lamb.py. The update direction takes the gradient's place.
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + decay p         p = p - lr ratio u
Traffic: 10 elements a parameter over both phases (csrc/include/ms/optim.h), 40 bytes in fp32.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.ops.adamw import Moment, Slots, move_moments_
from engine.ops.native import Kernels

PIECE = 1 << 14
"""Elements whose squares are summed together; tensors are cut into pieces of at most so many."""


class Pieces(NamedTuple):
    """Which part of a flat shard belongs to which tensor, as tables on the shard's device."""

    pieces: Tensor
    """[n, 3] int64: tensor, begin, end; sorted, a tensor's pieces side by side."""
    first_piece: Tensor
    """[tensors + 1] int64."""
    decay: Tensor
    """[tensors] float64: weight decay."""
    ranges: tuple[tuple[int, int], ...]
    """Begin and end of each tensor's part in the shard, for reading in Python."""


def cut(ranges: list[tuple[int, int]], decay: list[float], device: torch.device) -> Pieces:
    """Tables for tensors that occupy `ranges` of a shard; an empty range holds nothing here."""
    table: list[tuple[int, int, int]] = []
    firsts = [0]
    for number, (begin, end) in enumerate(ranges):
        table += [(number, i, min(i + PIECE, end)) for i in range(begin, end, PIECE)]
        firsts.append(len(table))
    return Pieces(
        torch.tensor(table, dtype=torch.int64, device=device).view(-1, 3),
        torch.tensor(firsts, dtype=torch.int64, device=device),
        torch.tensor(decay, dtype=torch.float64, device=device),
        tuple(ranges),
    )


def lamb_moments_(
    slots: Slots, moment: Moment, pieces: Pieces, *, kernels: Kernels | None = None
) -> Tensor:
    """First phase: moves the moments, leaves u in slots.grad.

    Returns sum(p^2) and sum(u^2) of each tensor's part here, [tensors, 2] float64.
    """
    if kernels is None or not kernels.fit(slots.param):
        return reference_lamb_moments_(slots, moment, pieces)
    norms = torch.empty((len(pieces.ranges), 2), dtype=torch.float64, device=slots.param.device)
    kernels.ops.lamb_moments(
        *slots, *pieces[:3], norms, moment.beta1, moment.beta2, moment.eps, moment.c1, moment.c2,
        moment.grad_scale,
    )  # fmt: skip
    return norms


def lamb_apply_(
    slots: Slots, pieces: Pieces, ratio: Tensor, *, lr: float, kernels: Kernels | None = None
) -> None:
    """Second phase: moves the parameters by u (in slots.grad); ratio [tensors] float64."""
    if kernels is None or not kernels.fit(slots.param):
        reference_lamb_apply_(slots, pieces, ratio, lr=lr)
    else:
        kernels.ops.lamb_apply(slots.param, slots.grad, pieces.pieces, ratio, lr)


def reference_lamb_moments_(slots: Slots, moment: Moment, pieces: Pieces) -> Tensor:
    """The first phase, written for reading."""
    norms = torch.zeros((len(pieces.ranges), 2), dtype=torch.float64, device=slots.param.device)
    for number, (begin, end) in enumerate(pieces.ranges):
        part = Slots(*(slot[begin:end] for slot in slots))
        direction = move_moments_(part, moment)
        direction += pieces.decay[number].to(direction.dtype) * part.param
        part.grad.copy_(direction)
        norms[number, 0] = part.param.double().square().sum()
        norms[number, 1] = direction.double().square().sum()
    return norms


def reference_lamb_apply_(slots: Slots, pieces: Pieces, ratio: Tensor, *, lr: float) -> None:
    """The second phase, written for reading."""
    for number, (begin, end) in enumerate(pieces.ranges):
        step = (lr * ratio[number]).to(slots.param.dtype)
        slots.param[begin:end] -= step * slots.grad[begin:end]
