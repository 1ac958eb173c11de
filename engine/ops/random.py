"""Random numbers that are counted, not drawn: they depend on key and index, never on a rank.

Initial weights are keyed by parameter name and indexed by position in the *global* tensor; dropout
is keyed by site and step and indexed by sample and position. So no layout changes a single number.
The generator is two rounds of the SplitMix64 finaliser over (key, index), in wrapping int64
arithmetic, which gives the same bits on every device.
"""

import hashlib
import math

import torch
from torch import Tensor

_BLOCK = 1 << 22
"""Elements handled at a time, to bound the memory of temporaries (32 MiB each)."""


def key_of(seed: int, *parts: str | int) -> int:
    """A 64-bit key, as a signed integer, from the run's seed and a path of names and numbers."""
    text = "\x1f".join(str(part) for part in (seed, *parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MUL_A = _signed(0xBF58476D1CE4E5B9)
_MUL_B = _signed(0x94D049BB133111EB)


def _shift(bits: Tensor, by: int) -> Tensor:
    """Logical right shift of int64."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _MUL_A
    bits = (bits ^ _shift(bits, 27)) * _MUL_B
    return bits ^ _shift(bits, 31)


def bits(key: int | Tensor, index: Tensor) -> Tensor:
    """64 pseudo-random bits for every index (int64); `key` broadcasts against `index`."""
    return _mix(_mix(index * _GAMMA + key) ^ key)


def uniform(key: int | Tensor, index: Tensor) -> Tensor:
    """Float64 values in [0, 1) with 53 random bits."""
    return _shift(bits(key, index), 11).to(torch.float64) * 2.0**-53


def normal(key: int, index: Tensor) -> Tensor:
    """Float64 values of a standard normal distribution (Box-Muller, one pair per value)."""
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(key, index)))
    return radius * torch.cos(2.0 * math.pi * uniform(key ^ _MUL_B, index))


def box_index(shape: tuple[int, ...], box: tuple[tuple[int, int], ...], device: str) -> Tensor:
    """Row-major positions in a tensor of `shape` of the elements in `box`, flattened (int64)."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    for size, (start, stop) in zip(shape, box, strict=True):
        index = index.unsqueeze(-1) * size + torch.arange(start, stop, device=device)
    return index.reshape(-1)


def fill_normal(
    out: Tensor, key: int, shape: tuple[int, ...], box: tuple[tuple[int, int], ...], std: float
) -> None:
    """Fill `out` (a rectangular part `box` of a global tensor of `shape`) with N(0, std**2)."""
    index = box_index(shape, box, str(out.device))
    flat = out.reshape(-1)
    for start in range(0, flat.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        flat[part].copy_(normal(key, index[part]) * std)
