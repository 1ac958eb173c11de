"""Stage one: the bytes of a rank's pieces in host memory, in the order of its shard file.

On CPU a piece's bytes are viewed, not copied, where the caller may wait for the write; see `Arena`
for the copy that lets training go on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.ckpt.manifest import ITEM_BYTES
from engine.ckpt.piece import Piece
from engine.ckpt.safefile import Image, Planned, plan_image
from engine.errors import CheckpointError

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
"""Element types by their names in the format."""


def plan_pieces(pieces: Sequence[Piece], rank: int) -> Image:
    """The file image for a rank's pieces; checks that each piece's memory fits its description."""
    planned = []
    for piece in pieces:
        count = piece.flat[1] - piece.flat[0]
        shape = tuple(piece.tensor.shape)
        if shape != (count,) or not piece.tensor.is_contiguous():
            raise CheckpointError(
                f"{piece.name} ({piece.slot}): tensor {list(shape)} for the {count} elements "
                f"of range {list(piece.flat)}",
                remedy="give a contiguous one-dimensional view of exactly the owned range",
            )
        dtype = DTYPES.get(piece.tensor.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{piece.name} ({piece.slot}): dtype {piece.tensor.dtype} is not stored",
                remedy=f"convert it to one of {', '.join(ITEM_BYTES)}",
            )
        planned.append(Planned(piece.name, piece.slot, dtype, piece.region))
    return plan_image(planned, {"format": "msctl", "rank": str(rank)})


def host_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a 1-D contiguous tensor; of the tensor itself on CPU, of a copy on a device."""
    host = tensor.detach().to("cpu")
    if host.numel() == 0:
        return memoryview(b"")
    return host.view(torch.uint8).numpy().data


def from_host(tensor: torch.Tensor, data: npt.NDArray[np.uint8]) -> None:
    """Copy bytes in host memory into a 1-D contiguous tensor of that size."""
    if len(data):
        host = torch.from_numpy(data.copy()).view(tensor.dtype)
        tensor.detach().copy_(host)
