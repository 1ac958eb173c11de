"""The global gradient norm over all axes, each element counted once, and clipping by it."""

import torch
from torch import Tensor

_BLOCK = 1 << 14
"""Elements whose squares are summed in the gradient's own precision before float64 takes over."""


def square_sum(parts: list[Tensor], device: torch.device) -> Tensor:
    """Sum of squares of several 1-D tensors, a float64 scalar.

    Block norms in the tensor's precision, their squares in float64: as exact as converting
    everything (a block's rounding averages out) at a tenth of the cost.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        whole = part.numel() // _BLOCK * _BLOCK
        for piece in (part[:whole].view(-1, _BLOCK), part[whole:].view(1, -1)):
            if piece.numel():
                norms = torch.linalg.vector_norm(piece, dim=1)
                total += norms.to(torch.float64).square().sum()
    return total


def clip_factor(norm: float, limit: float) -> float:
    """What gradients are multiplied by so that their norm does not exceed `limit` (0 = no limit).

    The small constant in the denominator is that of torch.nn.utils.clip_grad_norm_.
    """
    if limit <= 0.0:
        return 1.0
    return min(1.0, limit / (norm + 1e-6))
