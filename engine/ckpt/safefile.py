"""The image of one shard file: a valid safetensors file whose data begins on a page.

The header is padded with spaces to a multiple of 4 KiB, so the data may be written with O_DIRECT
and read straight into tensors; tensors follow each other without holes, as the format demands. The
reader here checks a header of unknown origin without trusting any number in it.
"""

import json
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from engine.ckpt.geometry import Region, extents
from engine.ckpt.manifest import DIMS_LIMIT, ITEM_BYTES
from engine.errors import CheckpointError

PAGE = 4096
HEADER_LIMIT = 100 << 20
"""Longest header that is read; the format's own limit."""

_MOST = (1 << 63) - 1


class Planned(NamedTuple):
    """A piece to be stored: its name in the file, slot, element type and region."""

    name: str
    slot: str
    dtype: str
    region: Region

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return self.region.size * ITEM_BYTES[self.dtype]


class Image(NamedTuple):
    """A file before it is written: header, pieces in file order, where each one's data begins."""

    header: bytes
    planned: tuple[Planned, ...]
    order: tuple[int, ...]
    """order[i] is the position of planned[i] in the sequence that was given."""
    offsets: tuple[int, ...]
    bytes: int


class Stored(NamedTuple):
    """One tensor of a safetensors file: type, shape, absolute byte range."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def plan_image(pieces: Sequence[Planned], metadata: dict[str, str]) -> Image:
    """Lay pieces out in one file, widest elements first so that all stay aligned."""
    order = sorted(range(len(pieces)), key=lambda i: -ITEM_BYTES[pieces[i].dtype])
    planned = tuple(pieces[i] for i in order)
    table: dict[str, Any] = {"__metadata__": metadata}
    at, starts = 0, []
    for piece in planned:
        table[file_key(piece, table)] = {
            "dtype": piece.dtype,
            "shape": list(_file_shape(piece.region)),
            "data_offsets": [at, at + piece.bytes],
        }
        starts.append(at)
        at += piece.bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    header = len(text).to_bytes(8, "little") + text
    offsets = tuple(len(header) + start for start in starts)
    return Image(header, planned, tuple(order), offsets, len(header) + at)


def file_key(piece: Planned, taken: dict[str, Any]) -> str:
    """A tensor's key in a shard file: `slot/name`, plus `@from` for a second range of it."""
    key = f"{piece.slot}/{piece.name}"
    if key in taken:
        key = f"{key}@{piece.region.flat[0]}"
    if key in taken:
        raise CheckpointError(
            f"{piece.name} ({piece.slot}): two pieces begin at element {piece.region.flat[0]}",
            remedy="list every range of the state once; a tied tensor belongs to one owner",
        )
    return key


def parse_header(
    data: bytes, file_bytes: int, where: str
) -> tuple[dict[str, Stored], dict[str, str]]:
    """Tensors (absolute ranges) and metadata of a safetensors file from its first bytes.

    `data` must hold the whole header, whose length `header_length` tells. Raises CheckpointError.
    """
    try:
        table = json.loads(data[8:])
    except (ValueError, RecursionError) as error:
        raise _bad(where, f"header is not JSON: {str(error)[:80]}") from error
    if not isinstance(table, dict):
        raise _bad(where, "header is not a table")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise _bad(where, "__metadata__ is not a table of strings")
    stored = {name: _stored(name, entry, len(data), where) for name, entry in table.items()}
    at = len(data)
    for tensor in sorted(stored.values(), key=lambda t: (t.start, t.end)):
        if tensor.start != at:
            raise _bad(where, f"hole or overlap at byte {at}")
        at = tensor.end
    if at != file_bytes:
        raise _bad(where, f"data ends at byte {at}, the file at {file_bytes}")
    return stored, metadata


def header_length(data: bytes, file_bytes: int, where: str) -> int:
    """Bytes of the header with its 8-byte length field; `data` are the file's first 8 bytes."""
    length = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > file_bytes or length > HEADER_LIMIT:
        raise _bad(where, f"header of {length} bytes in a file of {file_bytes}")
    return length


def _stored(name: str, entry: Any, base: int, where: str) -> Stored:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, start, end)
        if any(type(n) is not int or not 0 <= n <= _MOST for n in numbers):
            raise ValueError
        if len(shape) > DIMS_LIMIT:
            raise ValueError
        wide = ITEM_BYTES.get(dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(where, f"entry {name[:80]!r} is malformed") from error
    if wide is None:
        known = ", ".join(ITEM_BYTES)
        raise _bad(where, f"{name[:80]!r}: dtype {str(dtype)[:20]!r}, known are {known}")
    if end - start != prod(shape) * wide:
        raise _bad(where, f"{name[:80]!r}: {end - start} bytes for shape {list(shape)} of {dtype}")
    return Stored(dtype, shape, base + start, base + end)


def _file_shape(region: Region) -> tuple[int, ...]:
    box = extents(region.box)
    return box if region.size == prod(box) else (region.size,)


def _bad(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: {what}",
        remedy="copy the file again from its source; it is not a whole safetensors file",
    )
