"""What a checkpoint holds: its tensors, who holds them, and how two checkpoints differ."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from engine.ckpt.catalog import find, read_manifest
from engine.ckpt.manifest import ITEM_BYTES, Manifest, TensorEntry
from engine.errors import CheckpointError
from engine.spec.base import Noun
from engine.spec.layout import ParallelLayout


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


def diff(left: str | Path, right: str | Path) -> list[Difference]:
    """How two checkpoints differ in step, layout, model, types and data; empty if in nothing."""
    a, b = (read_manifest(*find(where)) for where in (left, right))
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
    if [file.digests for file in a.files] != [file.digests for file in b.files]:
        compare("data", f"{len(a.files)} files", f"{len(b.files)} files, other content")
    return found


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
