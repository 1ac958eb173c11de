"""The global gradient norm over all axes, each element counted once, and clipping by it."""

import torch
from torch import Tensor


def square_sum(parts: list[Tensor], device: torch.device) -> Tensor:
    """Sum of squares of several tensors, accumulated in float64; a scalar."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        if part.numel():
            total += torch.linalg.vector_norm(part, dtype=torch.float64).square()
    return total


def clip_factor(norm: float, limit: float) -> float:
    """What gradients are multiplied by so that their norm does not exceed `limit` (0 = no limit).

    The small constant in the denominator is that of torch.nn.utils.clip_grad_norm_.
    """
    if limit <= 0.0:
        return 1.0
    return min(1.0, limit / (norm + 1e-6))
