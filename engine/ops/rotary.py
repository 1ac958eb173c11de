"""Rotary positions: feature pairs (i, i + d/2) are turned by an angle that grows with position."""

import torch
from torch import Tensor


def rotary_tables(s: int, d: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin, [s, 1, 1, d / 2], in the dtype and on the device of `like`."""
    exponent = torch.arange(0, d, 2, device=like.device, dtype=torch.float64) / d
    angle = torch.outer(torch.arange(s, device=like.device, dtype=torch.float64), theta**-exponent)
    return angle.cos()[:, None, None].to(like.dtype), angle.sin()[:, None, None].to(like.dtype)


def rotate(x_sbnd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotation to queries or keys."""
    a, b = x_sbnd.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
