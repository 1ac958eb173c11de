"""Rewrite a checkpoint for another layout, offline, with bounded memory.

Loading needs no reshard: any layout reads any checkpoint. Rewriting pays off when a cut across
columns would make each of many restarts read whole rows, or when a checkpoint moves to another
store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from engine.ckpt.catalog import find, read_manifest
from engine.ckpt.geometry import Region
from engine.ckpt.manifest import ITEM_BYTES, Manifest
from engine.ckpt.partition import rank_pieces
from engine.ckpt.reading import Want, fill
from engine.ckpt.safefile import Planned, plan_image
from engine.ckpt.save import assemble, claim, commit, write_part
from engine.ckpt.store import Store, open_store
from engine.errors import CheckpointError, LayoutError
from engine.spec.base import Noun
from engine.spec.layout import ParallelLayout
from engine.units import parse_bytes

MEMORY_BYTES = 256 << 20
"""Default bound on the buffers of a reshard."""

LEAST_BYTES = 4 << 20


class ReshardPlan(Noun, frozen=True, kw_only=True):
    """What a reshard will write."""

    source: str
    step: int
    layout: ParallelLayout
    files: int
    pieces: int
    bytes: int
    largest_file_bytes: int


def plan_reshard(manifest: Manifest, layout: ParallelLayout, *, source: str = "") -> ReshardPlan:
    """Cut the state for a layout without touching any data; LayoutError if it cannot be cut."""
    sizes, pieces = [], 0
    for _, planned in rank_pieces(manifest, layout):
        pieces += len(planned)
        sizes.append(sum(piece.bytes for piece in planned))
    return ReshardPlan(
        source=source, step=manifest.meta.step, layout=layout, files=len(sizes), pieces=pieces,
        bytes=sum(sizes), largest_file_bytes=max(sizes),
    )  # fmt: skip


def plan_reshard_of(source: str | Path, layout: ParallelLayout) -> ReshardPlan:
    """`plan_reshard` of a checkpoint by its location."""
    store, folder = find(source)
    return plan_reshard(read_manifest(store, folder), layout, source=f"{store.url}/{folder}")


def parse_layout(assignments: Sequence[str]) -> ParallelLayout:
    """`["tp=2", "dp=4"]` as a layout; raises LayoutError on anything else."""
    values: dict[str, int] = {}
    for text in assignments:
        axis, equals, number = text.partition("=")
        if axis not in ("tp", "pp", "vpp", "dp", "zero") or not equals or not number.isdecimal():
            raise LayoutError(
                f"layout {text!r} is not AXIS=N with an axis of tp, pp, vpp, dp, zero",
                remedy="write e.g. --layout tp=2 --layout dp=4",
            )
        values[axis] = int(number[:9])  # more is no layout of any machine
    for axis, value in values.items():
        if axis == "zero" and value > 2:
            raise LayoutError(
                f"layout.zero = {value} is not 0, 1 or 2", remedy="use --layout zero=2, or leave it"
            )
        if axis != "zero" and value < 1:
            raise LayoutError(
                f"layout.{axis} = {value} is not at least 1", remedy=f"use e.g. --layout {axis}=1"
            )
    return msgspec.convert(values, ParallelLayout)


def parse_memory(text: str) -> int:
    """`64MiB` as a bound on buffers, in bytes; raises CheckpointError on anything else."""
    try:
        size = parse_bytes(text)
    except ValueError:
        raise CheckpointError(
            f"memory {text!r} is no amount of bytes", remedy="write e.g. --memory 256MiB"
        ) from None
    if size < LEAST_BYTES:
        raise _too_little(size)
    return size


def _too_little(size: int) -> CheckpointError:
    return CheckpointError(
        f"memory = {size} bytes is too little for a reshard",
        remedy="allow at least 4 MiB, e.g. --memory 64MiB",
    )


def reshard(
    source: str | Path,
    target: str | Path,
    layout: ParallelLayout,
    *,
    memory_bytes: int = MEMORY_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Write `source` anew under `target` as `layout` would save it; returns the new folder's name.

    Every chunk read is checked against its digest. At most about `memory_bytes` of data are held,
    whatever the sizes of files and tensors.
    """
    store, folder = find(source)
    manifest = read_manifest(store, folder)
    block = max(1 << 16, memory_bytes // 4)
    if memory_bytes < LEAST_BYTES:
        raise _too_little(memory_bytes)
    out = open_store(target)
    name = claim(out, manifest.meta.step)
    parts, done = [], 0
    for rank, planned in rank_pieces(manifest, layout):
        image = plan_image(planned, {"format": "msctl", "rank": str(rank)})
        views = stream(store, folder, manifest, image.planned, block=block)
        parts.append(write_part(out, name, image, views, rank=rank))
        done += image.bytes
        if progress:
            progress(done, manifest.bytes)
    meta = msgspec.structs.replace(manifest.meta, layout=layout)
    commit(out, name, assemble(meta, parts, layout.world_size))
    return name


def stream(
    store: Store, folder: str, manifest: Manifest, planned: Sequence[Planned], *, block: int
) -> Iterator[memoryview]:
    """The data of pieces, one after the other, in blocks of at most `block` bytes.

    Neighbouring small pieces are read together, so that no chunk is read once per bias.
    """
    batch: list[Planned] = []
    size = 0
    for piece in planned:
        for part in blocks(piece, block):
            if size + part.bytes > block and batch:
                yield from _read(store, folder, manifest, batch)
                batch, size = [], 0
            batch.append(part)
            size += part.bytes
    yield from _read(store, folder, manifest, batch)


def _read(
    store: Store, folder: str, manifest: Manifest, batch: list[Planned]
) -> Iterator[memoryview]:
    outs = [np.empty(part.bytes, np.uint8) for part in batch]
    wants = [
        Want(part.name, part.slot, part.dtype, part.region, out)
        for part, out in zip(batch, outs, strict=True)
    ]
    fill(store, folder, manifest, wants)
    for out in outs:
        yield out.data


def blocks(piece: Planned, block: int) -> Iterator[Planned]:
    """A piece in parts of at most `block` bytes, in order."""
    shape, box, (lo, hi) = piece.region
    step = max(1, block // ITEM_BYTES[piece.dtype])
    for at in range(lo, hi, step):
        yield piece._replace(region=Region(shape, box, (at, min(hi, at + step))))
