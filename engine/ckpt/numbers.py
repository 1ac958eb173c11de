"""Element types without torch: views of bytes, and conversions that round to nearest even.

bfloat16 has no numpy type; its values are handled as the 16-bit words they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.ckpt.manifest import ITEM_BYTES
from engine.errors import CheckpointError

Array = npt.NDArray[Any]

NUMPY: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
}
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types that are converted into one another."""

_BLOCK = 1 << 22


def convert(source: Array, have: str, want: str) -> Array:
    """An array of another element type, block by block; itself if the type is the same."""
    if have == want:
        return source
    if have not in FLOATS or want not in FLOATS:
        raise CheckpointError(
            f"{have} is not converted to {want}", remedy=f"choose one of {', '.join(FLOATS)}"
        )
    flat = np.ascontiguousarray(source).reshape(-1)
    out = np.empty(len(flat), NUMPY[want])
    for at in range(0, len(flat), _BLOCK):
        part = flat[at : at + _BLOCK]
        single = _widen(part) if have == "BF16" else part
        if want == "BF16":
            out[at : at + _BLOCK] = _narrow(_single(single))
        else:
            with np.errstate(over="ignore"):
                out[at : at + _BLOCK] = single.astype(NUMPY[want])
    return out.reshape(source.shape)


def typed(data: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Array:
    """Bytes as an array of their type and shape."""
    return data.view(NUMPY[dtype]).reshape(shape)


def item_bytes(dtype: str) -> int:
    """Size of one element."""
    return ITEM_BYTES[dtype]


def _widen(words: Array) -> Array:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _single(values: Array) -> Array:
    """Single precision on the way to bfloat16; what double precision loses is not rounded twice.

    An inexact value goes to its neighbour with an odd last bit, which no later tie can mislead.
    """
    with np.errstate(over="ignore"):
        near = values.astype(np.float32, copy=False)
    if values.dtype != np.float64:
        return near
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    bits -= np.abs(back) > np.abs(values)
    bits |= back != values
    return near


def _narrow(values: Array) -> Array:
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)
