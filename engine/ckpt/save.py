"""A checkpoint written while training waits: the simplest complete path, base of the others.

Every rank writes its own shard file, rank 0 writes the manifest, and the COMMITTED marker comes
last. A crash at any point leaves a folder without a marker, which nothing loads and `prune`
removes; folders of earlier checkpoints are not touched.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from engine.ckpt.catalog import CLAIM, folder_name, missing_files, parse_folder
from engine.ckpt.digest import ChunkDigests, watched
from engine.ckpt.manifest import (
    CHUNK_BYTES,
    COMMITTED,
    MANIFEST,
    CheckpointMeta,
    FileEntry,
    Manifest,
    Shard,
    SlotEntry,
    TensorEntry,
    encode,
)
from engine.ckpt.piece import Piece
from engine.ckpt.safefile import Image
from engine.ckpt.store import Store, open_store
from engine.errors import CheckpointError, EngineError
from engine.spec.base import Noun

logger = logging.getLogger(__name__)

Gather = Callable[[object], list[object]]
CLAIM_LIMIT = 4096


class NotHeld(CheckpointError):
    """The store acknowledged a write and does not have it."""


class NotOurs(CheckpointError):
    """Another run writes into the folder."""


class PartTensor(Noun, frozen=True, kw_only=True):
    """One piece in a part: what it is and where it begins in the rank's file."""

    name: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]
    flat: tuple[int, int]
    offset: int


class Part(Noun, frozen=True, kw_only=True):
    """What one rank contributes to the manifest, or why it could not."""

    rank: int
    file: FileEntry | None = None
    tensors: tuple[PartTensor, ...] = ()
    what: str = ""
    remedy: str = ""


def save_checkpoint(
    folder: str | Path,
    pieces: Sequence[Piece],
    *,
    meta: CheckpointMeta,
    rank: int,
    world: int,
    gather: Gather,
    barrier: Callable[[], None],
) -> str:
    """Write a checkpoint of `meta.step` under `folder` and return its folder's name on every rank.

    Called by all ranks together, and returns when the checkpoint is committed and durable.
    gather   takes one bytes object per rank and returns all of them in rank order, on every rank
    barrier  called once, after the commit, so that no rank goes on before its name is durable
    Raises   on every rank alike, if any rank fails: CheckpointError, with the failing rank named
    """
    from engine.ckpt.snapshot import host_view, plan_pieces

    store = open_store(folder)
    claimed = agree(gather, lambda: claim(store, meta.step).encode() if rank == 0 else b"")
    name = claimed[0].decode()
    image, part = None, Part(rank=rank)
    try:
        image = plan_pieces(pieces, rank)
        views = (host_view(pieces[i].tensor) for i in image.order)
        part = write_part(store, name, image, views, rank=rank)
    except EngineError as error:
        part = Part(rank=rank, what=error.what, remedy=error.remedy)
    parts = [msgspec.json.decode(_bytes(p), type=Part) for p in gather(msgspec.json.encode(part))]
    failed = [p for p in parts if p.what]
    if failed:
        raise CheckpointError(
            f"step {meta.step} was not saved: rank {failed[0].rank}: {failed[0].what}",
            remedy=failed[0].remedy,
        )

    def finish() -> bytes:
        if rank == 0:
            commit(store, name, assemble(meta, parts, world))
        return b""

    agree(gather, finish)
    barrier()
    return name


def claim(store: Store, step: int) -> str:
    """Take a folder that no attempt has used, and leave a note of who took it."""
    used = [parsed[1] for f in store.folders() if (parsed := parse_folder(f)) and parsed[0] == step]
    attempt = max(used, default=0) + 1
    while True:
        name = folder_name(step, attempt)
        if store.create(f"{name}/{CLAIM}", claim_note()):
            return name
        attempt += 1


def hold(store: Store, folder: str, owner: str) -> None:
    """Take a folder for a run, or see that the run has it; raises NotOurs if another one has.

    The flushers of all nodes call it before they write, with the id that their run drew.
    """
    name = f"{folder}/{CLAIM}"
    note = store.get(name, CLAIM_LIMIT)
    if note is None and store.create(name, claim_note(pid=0, owner=owner)):
        return
    if note is None:
        note = store.get(name, CLAIM_LIMIT)
    if claimed_by(note or b"") != owner:
        raise NotOurs(
            f"{store.url}/{folder}: another run writes a checkpoint of this step here",
            remedy="give every run a checkpoint.path of its own",
        )


def claimed_by(note: bytes) -> str:
    """The id in a claim; empty if it is torn."""
    try:
        return str(msgspec.json.decode(note, type=dict).get("id", ""))
    except msgspec.MsgspecError:
        return ""


def claim_note(pid: int | None = None, owner: str = "") -> bytes:
    """Who writes into a folder, to tell later whether it still lives (0: only its age tells)."""
    writer = os.getpid() if pid is None else pid
    note = {
        "host": platform.node(),
        "pid": writer,
        "time_s": time.time(),
        "id": owner or os.urandom(8).hex(),
    }
    return msgspec.json.encode(note)


def write_part(
    store: Store, name: str, image: Image, views: Iterable[memoryview], *, rank: int
) -> Part:
    """Write a rank's shard file durably, digesting on the way; views are in the image's order."""
    digests = ChunkDigests(CHUNK_BYTES)
    file = f"rank-{rank:05d}.safetensors"

    def stream() -> Iterable[memoryview]:
        yield memoryview(image.header)
        yield from views

    store.put(f"{name}/{file}", watched(stream(), digests))
    store.settle(name)
    return describe_part(image, file, digests.finish(), rank=rank)


def describe_part(image: Image, file: str, digests: str, *, rank: int) -> Part:
    """The part of the manifest that belongs to one file."""
    tensors = tuple(
        PartTensor(
            name=p.name, slot=p.slot, dtype=p.dtype, shape=p.region.shape,
            box=p.region.box, flat=p.region.flat, offset=offset,
        )
        for p, offset in zip(image.planned, image.offsets, strict=True)
    )  # fmt: skip
    entry = FileEntry(
        name=file, bytes=image.bytes, chunk_bytes=CHUNK_BYTES, digests=digests, rank=rank
    )
    return Part(rank=rank, file=entry, tensors=tensors)


def assemble(
    meta: CheckpointMeta, parts: Sequence[Part], world: int, created_s: float | None = None
) -> Manifest:
    """All parts as one manifest; raises CheckpointError if the state has holes or overlaps."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[tuple[str, str], str] = {}
    shards: dict[str, dict[str, list[Shard]]] = {}
    files = [part.file for part in parts if part.file is not None]
    for index, part in enumerate(p for p in parts if p.file is not None):
        for held in part.tensors:
            same = shapes.setdefault(held.name, held.shape) == held.shape
            if not same or dtypes.setdefault((held.name, held.slot), held.dtype) != held.dtype:
                raise CheckpointError(
                    f"{held.name} ({held.slot}): rank {part.rank} has shape {list(held.shape)} "
                    f"and dtype {held.dtype}, another rank has others",
                    remedy="build the same model with the same precision on every rank",
                )
            shard = Shard(file=index, offset=held.offset, box=held.box, flat=held.flat)
            shards.setdefault(held.name, {}).setdefault(held.slot, []).append(shard)
    tensors = {
        name: TensorEntry(
            shape=shapes[name],
            slots={s: SlotEntry(dtype=dtypes[name, s], shards=tuple(h)) for s, h in slots.items()},
        )
        for name, slots in shards.items()
    }
    manifest = Manifest(
        created_s=time.time(), world=world, meta=meta, versions=_versions(), files=tuple(files),
        tensors=tensors,
    )  # fmt: skip
    wrong = manifest.covers()
    if wrong:
        raise CheckpointError(
            f"step {meta.step}: the pieces of all ranks do not make up the state: {wrong[0]}",
            remedy="list every element on exactly one rank, tied tensors on their owner",
        )
    return manifest


def commit(store: Store, name: str, manifest: Manifest) -> None:
    """Manifest, then marker, then a look at what the store really holds; raises if it lies."""
    body, marker = encode(manifest)
    store.put(f"{name}/{MANIFEST}", [memoryview(body)])
    store.settle(name)
    faults = missing_files(manifest, store.files(name))
    if faults or store.get(f"{name}/{MANIFEST}", len(body)) != body:
        raise _lost(store, name, faults[0] if faults else f"{MANIFEST} reads back differently")
    if not store.create(f"{name}/{COMMITTED}", marker):
        raise _lost(store, name, "another writer committed the same folder")
    if store.get(f"{name}/{COMMITTED}", len(marker)) != marker:
        raise _lost(store, name, f"{COMMITTED} reads back differently")
    logger.info("checkpoint %s/%s committed bytes=%d", store.url, name, manifest.bytes)


def agree(gather: Gather, work: Callable[[], bytes]) -> list[bytes]:
    """Everybody's result, or on every rank the error of the first rank that failed."""
    try:
        mine = b"+" + work()
    except EngineError as error:
        mine = b"-" + msgspec.json.encode((error.what, error.remedy))
    every = [_bytes(item) for item in gather(mine)]
    for index, item in enumerate(every):
        if item[:1] == b"-":
            what, remedy = msgspec.json.decode(item[1:], type=tuple[str, str])
            raise CheckpointError(f"rank {index}: {what}", remedy=remedy)
    return [item[1:] for item in every]


def _bytes(item: object) -> bytes:
    if not isinstance(item, bytes):
        raise TypeError(f"gather returned {type(item).__name__} where it was given bytes")
    return item


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("msctl", "torch", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _lost(store: Store, name: str, what: str) -> NotHeld:
    return NotHeld(
        f"{store.url}/{name}: the store does not hold what was written: {what}",
        remedy="check the disk or the store; older checkpoints are untouched",
    )
