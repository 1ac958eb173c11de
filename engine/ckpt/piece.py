"""What a rank holds of the training state, piece by piece: the contract with the trainer.

A tensor of the state has a name and a slot. Tensor parallelism gives a rank a rectangular box of
it, ZeRO a range of that box's row-major flattening; a piece is such a range with the memory it
lives in. Every element of the state is in exactly one piece of one rank (a tied copy is listed by
its owner only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.ckpt.geometry import Box, Region

if TYPE_CHECKING:
    from torch import Tensor

Slot = Literal["param", "exp_avg", "exp_avg_sq"]
"""The master weight and the two Adam moments."""

SLOTS: tuple[Slot, ...] = ("param", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A contiguous range of a rank's shard of one tensor.

    name          public parameter name, e.g. `layers.3.attn.q.weight`
    global_shape  shape of the whole tensor
    box           per dim, [from, to) of the tensor that this rank's tensor-parallel shard is
    flat          [from, to) in the row-major flattening of the box, owned by this rank
    tensor        1-D, contiguous, flat[1] - flat[0] elements; a view of the live state
    """

    name: str
    slot: Slot
    global_shape: tuple[int, ...]
    box: Box
    flat: tuple[int, int]
    tensor: Tensor

    @property
    def region(self) -> Region:
        """The piece without its memory."""
        return Region(tuple(self.global_shape), tuple(self.box), self.flat)
