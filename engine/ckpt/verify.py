"""Is a checkpoint whole: marker, manifest, sizes, headers, coverage, every chunk's digest.

Damage is a result, not an exception: the report names the file, the chunk and the tensors in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

import numpy as np

from engine.ckpt.catalog import find, missing_files, read_manifest
from engine.ckpt.digest import ChunkDigests
from engine.ckpt.manifest import COMMITTED, FileEntry, Manifest
from engine.ckpt.reading import tensors_in
from engine.ckpt.safefile import header_length, parse_header
from engine.ckpt.store import Store
from engine.errors import CheckpointError
from engine.spec.base import Noun

Progress = Callable[[int, int], None]


class Damage(Noun, frozen=True, kw_only=True):
    """One fault: the file, the chunk of it (-1: the whole file), what is wrong, tensors hit."""

    file: str
    chunk: int = -1
    what: str
    tensors: tuple[str, ...] = ()


class VerifyReport(Noun, frozen=True, kw_only=True):
    """What was checked and all that is wrong."""

    where: str
    step: int
    bytes: int
    chunks: int
    seconds: float
    damage: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether the checkpoint is whole."""
        return not self.damage


def verify(
    where: str | Path, *, threads: int = 4, progress: Progress | None = None
) -> VerifyReport:
    """Check one checkpoint completely, reading every byte once.

    where     a checkpoint, or a folder of checkpoints: then the newest committed one
    progress  called with (bytes checked, bytes in all) from several threads
    Raises    CheckpointError if there is nothing to check; damage is in the report
    """
    store, folder = find(where, valid=False)
    start = time.perf_counter()
    if not any(found.name == COMMITTED for found in store.files(folder)):
        raise CheckpointError(
            f"{store.url}/{folder}: no {COMMITTED} marker, so this was never a complete checkpoint",
            remedy=f"name one that `msctl ckpt list {store.url}` shows as committed",
        )
    try:
        manifest = read_manifest(store, folder)
    except CheckpointError as error:
        damage = Damage(file=folder, what=error.what)
        return VerifyReport(
            where=f"{store.url}/{folder}", step=-1, bytes=0, chunks=0,
            seconds=time.perf_counter() - start, damage=(damage,),
        )  # fmt: skip
    damage_list = [
        *_structure(store, folder, manifest),
        *_contents(store, folder, manifest, threads, progress),
    ]
    return VerifyReport(
        where=f"{store.url}/{folder}", step=manifest.meta.step, bytes=manifest.bytes,
        chunks=sum(entry.chunks for entry in manifest.files),
        seconds=time.perf_counter() - start, damage=tuple(damage_list),
    )  # fmt: skip


def _structure(store: Store, folder: str, manifest: Manifest) -> Iterator[Damage]:
    for what in missing_files(manifest, store.files(folder)):
        yield Damage(file=what.split()[0], what=what)
    for what in manifest.covers():
        yield Damage(file=folder, what=what, tensors=(what.partition(":")[0],))


def _contents(
    store: Store, folder: str, manifest: Manifest, threads: int, progress: Progress | None
) -> list[Damage]:
    present = {found.name: found.bytes for found in store.files(folder)}
    jobs = [
        (entry, chunk)
        for entry in manifest.files
        if present.get(entry.name) == entry.bytes
        for chunk in range(entry.chunks)
    ]
    total, scratch, done = sum(entry.bytes for entry in manifest.files), local(), [0]

    def check(job: tuple[FileEntry, int]) -> Damage | None:
        entry, chunk = job
        size = min(entry.chunk_bytes, entry.bytes - chunk * entry.chunk_bytes)
        buffer = getattr(scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = scratch.buffer = np.empty(entry.chunk_bytes, np.uint8)
        digests, views = ChunkDigests(entry.chunk_bytes), [buffer.data[:size]]
        try:
            name = f"{folder}/{entry.name}"
            store.read(name, chunk * entry.chunk_bytes, views, digests.update)
        except CheckpointError as error:
            return Damage(file=entry.name, chunk=chunk, what=error.what)
        if progress:
            done[0] += size
            progress(done[0], total)
        if digests.finish() != entry.digest(chunk):
            hit = tuple(tensors_in(manifest, entry, chunk))
            return Damage(file=entry.name, chunk=chunk, what="digest differs", tensors=hit)
        return _header_fault(store, folder, manifest, entry) if chunk == 0 else None

    with ThreadPoolExecutor(threads) as pool:
        return [damage for damage in pool.map(check, jobs) if damage]


def _header_fault(store: Store, folder: str, manifest: Manifest, entry: FileEntry) -> Damage | None:
    """Whether a file's own header and the manifest tell the same story."""
    name = f"{folder}/{entry.name}"
    try:
        first = bytearray(8)
        store.read(name, 0, [memoryview(first)])
        header = bytearray(header_length(bytes(first), entry.bytes, entry.name))
        store.read(name, 0, [memoryview(header)])
        stored, _ = parse_header(bytes(header), entry.bytes, entry.name)
    except CheckpointError as error:
        return Damage(file=entry.name, chunk=0, what=error.what)
    begins = {(t.dtype, t.start) for t in stored.values()}
    index = manifest.files.index(entry)
    for tensor, held in manifest.tensors.items():
        for slot, part in held.slots.items():
            for shard in part.shards:
                here = shard.file == index and shard.flat[1] > shard.flat[0]
                if here and (part.dtype, shard.offset) not in begins:
                    what = "header and manifest disagree on where a tensor begins"
                    hit = (f"{tensor} ({slot})",)
                    return Damage(file=entry.name, chunk=0, what=what, tensors=hit)
    return None
