"""What a rank contributes to others, noted as digests, so that replicas can be compared.

A witness listens only while replicas are checked against each other (engine/train/sdc.py). What a
rank computes alone shows in what it hands to a communication, before the others' parts are mixed
in: so the first note that differs is of the rank that computed it, not of one that received it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

_PIECE = 1 << 22
"""Elements that are widened at once."""
_MIX = 0x9E3779B1
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> the whole numbers that show its bits."""


class Note(NamedTuple):
    """One digest, and its place in the order in which results follow from each other."""

    order: tuple[int, int]
    """Place of the action, and number within it."""
    digest: Tensor
    """int64, no dimensions; still on the device."""


class Witness:
    """Takes notes of tensors while it listens, and costs nothing otherwise."""

    def __init__(self) -> None:
        self._notes: list[Note] | None = None
        self._place = self._calls = 0

    @contextmanager
    def listening(self) -> Iterator[list[Note]]:
        """Inside, notes are taken into the yielded list."""
        notes: list[Note] = []
        self._notes = notes
        try:
            yield notes
        finally:
            self._notes = None

    def enter(self, place: int) -> None:
        """What is seen from now on belongs to this place of the order."""
        self._place, self._calls = place, 0

    def see(self, tensor: Tensor) -> None:
        """Note a tensor that this rank computed."""
        if self._notes is not None:
            self._notes.append(Note((self._place, self._calls), digest(tensor.detach())))
            self._calls += 1


def digest(tensor: Tensor) -> Tensor:
    """int64 without dimensions, the same for the same bits in the same order; never waits.

    Every element counts with an odd weight, so that no single flipped bit can leave the sum as it
    was: it changes it by an odd number times a power of two below 2^64.
    """
    bits = tensor.contiguous().view(-1).view(BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in bits.split(_PIECE):
        weights = torch.arange(1, 2 * part.numel(), 2, device=tensor.device)
        total = total * _MIX + (part.to(torch.int64) * weights).sum()
    return total
