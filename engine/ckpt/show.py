"""What a checkpoint holds: its tensors, who holds them, and how two checkpoints differ."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.ckpt.catalog import find, read_manifest
from engine.ckpt.geometry import whole
from engine.ckpt.manifest import ITEM_BYTES, Manifest, TensorEntry
from engine.ckpt.reshard import blocks, stream
from engine.ckpt.safefile import Planned
from engine.errors import CheckpointError
from engine.spec.base import Noun
from engine.spec.layout import ParallelLayout

_BLOCK = 16 << 20
"""Bytes of each checkpoint that a comparison holds at a time."""


class TensorRow(Noun, frozen=True, kw_only=True):
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slots: tuple[str, ...]
    shards: int
    ranks: tuple[int, ...]
    bytes: int


class CheckpointDetail(Noun, frozen=True, kw_only=True):
    """A checkpoint as `msctl ckpt show` prints it."""

    where: str
    step: int
    run: str
    created_s: float
    world: int
    layout: ParallelLayout
    parameters: int
    bytes: int
    files: int
    slots: tuple[str, ...]
    versions: dict[str, str]
    rng: dict[str, Any]
    data: dict[str, Any]
    extra: dict[str, Any]
    recipe_toml: str
    tensors: tuple[TensorRow, ...]


class Difference(Noun, frozen=True, kw_only=True):
    """One way in which two checkpoints differ."""

    what: str
    left: str
    right: str


class ShardRow(Noun, frozen=True, kw_only=True):
    """Where one range of a tensor lies."""

    slot: str
    file: str
    rank: int
    offset: int
    bytes: int
    box: str
    flat: tuple[int, int]


def show(where: str | Path) -> CheckpointDetail:
    """Everything a manifest says; raises CheckpointError."""
    store, folder = find(where)
    m = read_manifest(store, folder)
    return CheckpointDetail(
        where=f"{store.url}/{folder}", step=m.meta.step, run=m.meta.run, created_s=m.created_s,
        world=m.world, layout=m.meta.layout, parameters=m.elements, bytes=m.bytes,
        files=len(m.files), slots=m.slots, versions=m.versions, rng=m.meta.rng, data=m.meta.data,
        extra=m.meta.extra, recipe_toml=m.meta.recipe_toml,
        tensors=tuple(_row(m, name, entry) for name, entry in m.tensors.items()),
    )  # fmt: skip


def shards_of(where: str | Path, tensor: str) -> list[ShardRow]:
    """Every shard of one tensor; CheckpointError with names like it if there is no such tensor."""
    store, folder = find(where)
    manifest = read_manifest(store, folder)
    entry = manifest.tensors.get(tensor)
    if entry is None:
        close = difflib.get_close_matches(tensor, list(manifest.tensors), n=3, cutoff=0.5)
        raise CheckpointError(
            f"{store.url}/{folder}: no tensor is called {tensor!r}",
            remedy=f"did you mean {' or '.join(close)}?" if close
            else f"choose one of `msctl ckpt show {store.url}/{folder}`",
        )  # fmt: skip
    rows = []
    for slot, held in entry.slots.items():
        for shard in held.shards:
            file = manifest.files[shard.file]
            size = (shard.flat[1] - shard.flat[0]) * ITEM_BYTES[held.dtype]
            box = "[" + ", ".join(f"{lo}:{hi}" for lo, hi in shard.box) + "]"
            rows.append(
                ShardRow(
                    slot=slot, file=file.name, rank=file.rank, offset=shard.offset, bytes=size,
                    box=box, flat=shard.flat,
                )
            )  # fmt: skip
    return rows


def diff(
    left: str | Path, right: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> list[Difference]:
    """How two checkpoints differ in step, layout, model, types and contents; empty if in nothing.

    Contents are compared by tensor, so the layouts may differ, and read only if the manifests do
    not already say that they are the same; a few blocks of memory are held. CheckpointError if a
    chunk that is read is damaged.
    """
    (store, folder), (other, beside) = places = [find(where) for where in (left, right)]
    a, b = (read_manifest(*place) for place in places)
    found = []

    def compare(what: str, x: object, y: object) -> None:
        if x != y:
            found.append(Difference(what=what, left=str(x), right=str(y)))

    compare("step", a.meta.step, b.meta.step)
    for axis in ("tp", "pp", "vpp", "dp", "zero"):
        compare(f"layout.{axis}", getattr(a.meta.layout, axis), getattr(b.meta.layout, axis))
    if a.meta.recipe_toml != b.meta.recipe_toml:
        compare("recipe", "as saved", "another one")
    for name in sorted(a.tensors.keys() | b.tensors.keys()):
        x, y = a.tensors.get(name), b.tensors.get(name)
        compare(name, _brief(x), _brief(y))
    if a.tensors == b.tensors and _contents(a) == _contents(b):
        return found
    planned = _in_common(a, b)
    parts = [part for piece in planned for part in blocks(piece, _BLOCK)]
    streams = zip(
        parts,
        stream(store, folder, a, planned, block=_BLOCK),
        stream(other, beside, b, planned, block=_BLOCK),
        strict=True,
    )
    return found + _unequal(streams, planned, progress)


def _contents(manifest: Manifest) -> list[tuple[int, int, str]]:
    """What the digests say of every file."""
    return [(file.bytes, file.chunk_bytes, file.digests) for file in manifest.files]


def _in_common(a: Manifest, b: Manifest) -> list[Planned]:
    """What both hold in the same shape and type, whole."""
    return [
        Planned(name, slot, held.dtype, whole(entry.shape))
        for name, entry in a.tensors.items()
        if name in b.tensors and b.tensors[name].shape == entry.shape
        for slot, held in entry.slots.items()
        if slot in b.tensors[name].slots and b.tensors[name].slots[slot].dtype == held.dtype
    ]


def _unequal(
    streams: Iterable[tuple[Planned, memoryview, memoryview]], planned: Sequence[Planned],
    progress: Callable[[int, int], None] | None,
) -> list[Difference]:  # fmt: skip
    """One line for every tensor and slot of which a block is not the same on both sides."""
    counts: dict[tuple[str, str], int] = {}
    total, done = sum(piece.bytes for piece in planned), 0
    for part, x, y in streams:
        unlike = np.frombuffer(x, np.uint8) != np.frombuffer(y, np.uint8)
        if unlike.any():
            elements = int(unlike.reshape(-1, ITEM_BYTES[part.dtype]).any(axis=1).sum())
            counts[part.name, part.slot] = counts.get((part.name, part.slot), 0) + elements
        done += part.bytes
        if progress:
            progress(done, total)
    sizes = {(piece.name, piece.slot): piece.region.size for piece in planned}
    return [
        Difference(
            what=f"{name} ({slot})", left="content",
            right=f"{count} of {sizes[name, slot]} elements differ",
        )
        for (name, slot), count in counts.items()
    ]  # fmt: skip


def _row(manifest: Manifest, name: str, entry: TensorEntry) -> TensorRow:
    shards = [shard for held in entry.slots.values() for shard in held.shards]
    ranks = sorted({manifest.files[shard.file].rank for shard in shards})
    size = sum(
        (shard.flat[1] - shard.flat[0]) * ITEM_BYTES[held.dtype]
        for held in entry.slots.values()
        for shard in held.shards
    )
    dtypes = sorted({held.dtype for held in entry.slots.values()})
    return TensorRow(
        name=name, shape=entry.shape, dtype="/".join(dtypes), slots=tuple(entry.slots),
        shards=len(shards), ranks=tuple(ranks), bytes=size,
    )  # fmt: skip


def _brief(entry: TensorEntry | None) -> str:
    if entry is None:
        return "absent"
    slots = ", ".join(f"{slot} {held.dtype}" for slot, held in sorted(entry.slots.items()))
    return f"{list(entry.shape)} ({slots})"
