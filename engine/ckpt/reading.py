"""Verified reads of any region of a checkpoint: needed chunks only, each once, digest before trust.

Wanted regions are turned into copies (file offset -> memory). Copies of one file are sorted and
walked chunk by chunk; a chunk is scattered by one read straight into the wanted memory, with
scratch space for what nobody wants, and its digest is taken over those parts. Torch is not needed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.ckpt.digest import ChunkDigests
from engine.ckpt.geometry import Ints, Region, overlap
from engine.ckpt.manifest import ITEM_BYTES, FileEntry, Manifest
from engine.ckpt.store import Store
from engine.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]

PARTS_LIMIT = 256
"""A chunk wanted in more parts than this is read whole and copied by index."""


class Want(NamedTuple):
    """A region of a tensor to be read into `out`, a writable flat byte array of its size."""

    name: str
    slot: str
    dtype: str
    region: Region
    out: Bytes


class Copies(NamedTuple):
    """Bytes [at, at + length) of a file go to `out[to:]`; ascending."""

    at: Ints
    to: Ints
    length: Ints
    out: Bytes


class ReadReport(NamedTuple):
    """What was read: bytes from the store and bytes that were wanted."""

    read_bytes: int
    wanted_bytes: int


def fill(
    store: Store, folder: str, manifest: Manifest, wants: Sequence[Want], *, threads: int = 2
) -> ReadReport:
    """Fill every wanted region; CheckpointError on damage, naming file, chunk and tensors."""
    jobs = plan_jobs(manifest, wants)
    done = run_jobs(store, folder, manifest, jobs, threads=threads)
    return ReadReport(done, sum(len(want.out) for want in wants))


def plan_jobs(manifest: Manifest, wants: Sequence[Want]) -> list[Job]:
    """Every chunk that holds something wanted, once, in the order of files."""
    by_file: dict[int, list[Copies]] = {}
    for want in wants:
        for index, copies in locate(manifest, want):
            by_file.setdefault(index, []).append(copies)
    return [
        job
        for index, copies in sorted(by_file.items())
        for job in _jobs(manifest.files[index], copies)
    ]


def run_jobs(
    store: Store, folder: str, manifest: Manifest, jobs: Sequence[Job], *, threads: int = 2
) -> int:
    """Read chunks into the wanted memory, verified; returns the bytes read."""

    def run(job: Job) -> int:
        return _read_chunk(store, folder, manifest, job)

    if threads < 2 or len(jobs) < 2:
        return sum(run(job) for job in jobs)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(run, jobs))


def locate(manifest: Manifest, want: Want) -> Iterator[tuple[int, Copies]]:
    """Which bytes of which files make up a region; raises if the checkpoint has another tensor."""
    entry = manifest.tensors.get(want.name)
    held = entry.slots.get(want.slot) if entry else None
    if entry is None or held is None:
        raise _other_model(f"the checkpoint has no {want.name} ({want.slot})")
    if entry.shape != want.region.shape:
        raise _other_model(
            f"{want.name}: shape {list(entry.shape)} in the checkpoint, "
            f"{list(want.region.shape)} in the model"
        )
    if held.dtype != want.dtype:
        raise _other_model(
            f"{want.name} ({want.slot}): {held.dtype} in the checkpoint, {want.dtype} in the model"
        )
    wide = ITEM_BYTES[want.dtype]
    found, places = 0, []
    for shard in held.shards:
        common = overlap(entry.region(shard), want.region)
        if len(common.length):
            found += common.size
            places.append((common.want_at, common.length))
            yield (
                shard.file,
                Copies(
                    common.have_at * wide + shard.offset,
                    common.want_at * wide,
                    common.length * wide,
                    want.out,
                ),
            )
    if found != want.region.size:
        raise CheckpointError(
            f"{want.name} ({want.slot}): only {found} of {want.region.size} elements are there",
            remedy="run `msctl ckpt verify` on it, and resume from an older one",
        )
    if _meet(places):
        raise CheckpointError(
            f"{want.name} ({want.slot}): elements are held twice, so that others are not there",
            remedy="run `msctl ckpt verify` on it, and resume from an older one",
        )


def _meet(places: Sequence[tuple[Ints, Ints]]) -> bool:
    """Whether any two ranges (begins, lengths) of different shards overlap."""
    if len(places) < 2:
        return False
    at, length = (np.concatenate(column) for column in zip(*places, strict=True))
    order = np.argsort(at, kind="stable")
    at, end = at[order], (at + length)[order]
    return bool((at[1:] < end[:-1]).any())


class Job(NamedTuple):
    """One chunk to read: its file, number, and the copies that touch it (index range into each)."""

    file: FileEntry
    chunk: int
    parts: list[tuple[Copies, int, int]]

    def memory(self) -> Iterator[Bytes]:
        """The wanted memory that this chunk fills, piece by piece; the same order for everybody."""
        lo = self.chunk * self.file.chunk_bytes
        hi = min(lo + self.file.chunk_bytes, self.file.bytes)
        for copies, first, last in self.parts:
            skip = np.maximum(lo - copies.at[first:last], 0)
            end = np.minimum(copies.length[first:last], hi - copies.at[first:last])
            to = copies.to[first:last]
            for a, b in zip((to + skip).tolist(), (to + end).tolist(), strict=True):
                yield copies.out[a:b]


def _jobs(file: FileEntry, every: Sequence[Copies]) -> Iterator[Job]:
    size = file.chunk_bytes
    parts: dict[int, list[tuple[Copies, int, int]]] = {}
    for copies in every:
        end = copies.at + copies.length
        for chunk in _touched(copies, size):
            first = int(np.searchsorted(end, chunk * size, side="right"))
            last = int(np.searchsorted(copies.at, (chunk + 1) * size, side="left"))
            parts.setdefault(chunk, []).append((copies, first, last))
    for chunk in sorted(parts):
        yield Job(file, chunk, parts[chunk])


def _touched(copies: Copies, size: int) -> list[int]:
    first, last = copies.at // size, (copies.at + copies.length - 1) // size
    single = np.unique(first[first == last])
    wide = [
        np.arange(a, b + 1) for a, b in zip(first[first != last], last[first != last], strict=True)
    ]
    return [int(c) for c in np.unique(np.concatenate([single, *wide]))]


def _read_chunk(store: Store, folder: str, manifest: Manifest, job: Job) -> int:
    lo = job.chunk * job.file.chunk_bytes
    size = min(job.file.chunk_bytes, job.file.bytes - lo)
    if sum(last - first for _, first, last in job.parts) > PARTS_LIMIT:
        whole = np.empty(size, np.uint8)
        _read_verified(store, folder, manifest, job, [whole.data])
        _scatter(whole, lo, job)
    else:
        _read_verified(store, folder, manifest, job, _views(job, lo, size))
    return size


def _read_verified(
    store: Store, folder: str, manifest: Manifest, job: Job, views: Sequence[memoryview]
) -> None:
    """Fill the views with a chunk; CheckpointError if its digest is another."""
    digests = ChunkDigests(job.file.chunk_bytes)
    offset = job.chunk * job.file.chunk_bytes
    store.read(f"{folder}/{job.file.name}", offset, views, digests.update)
    if digests.finish() == job.file.digest(job.chunk):
        return
    names = ", ".join(tensors_in(manifest, job.file, job.chunk)[:4])
    raise CheckpointError(
        f"{store.url}/{folder}/{job.file.name}: chunk {job.chunk} (bytes from {offset}) is "
        f"damaged; it holds {names}",
        remedy="resume from an older checkpoint; `msctl ckpt verify` shows all damage of this one",
    )


def _views(job: Job, lo: int, size: int) -> list[memoryview]:
    """The chunk's bytes in order: wanted memory where wanted, scratch in between."""
    pieces = []
    for copies, first, last in job.parts:
        for i in range(first, last):
            at, to, length = int(copies.at[i]), int(copies.to[i]), int(copies.length[i])
            skip = max(0, lo - at)
            end = min(length, lo + size - at)
            pieces.append((at + skip - lo, copies.out.data[to + skip : to + end]))
    pieces.sort(key=lambda piece: piece[0])
    views, at = [], 0
    for start, view in pieces:
        if start < at:
            raise CheckpointError(
                f"{job.file.name}: two tensors lie on byte {lo + start}",
                remedy="run `msctl ckpt verify` on it, and resume from an older one",
            )
        if start > at:
            views.append(memoryview(bytearray(start - at)))
        views.append(view)
        at = start + len(view)
    if at < size:
        views.append(memoryview(bytearray(size - at)))
    return views


def _scatter(chunk: Bytes, lo: int, job: Job) -> None:
    for copies, first, last in job.parts:
        at = np.maximum(copies.at[first:last], lo)
        cut = at - copies.at[first:last]
        length = np.minimum(copies.length[first:last] - cut, lo + len(chunk) - at)
        to = copies.to[first:last] + cut
        if len(length) and int(length.sum()) // len(length) >= 512:
            for a, b, n in zip((at - lo).tolist(), to.tolist(), length.tolist(), strict=True):
                copies.out[b : b + n] = chunk[a : a + n]
        else:
            inside = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
            copies.out[np.repeat(to, length) + inside] = chunk[np.repeat(at - lo, length) + inside]


def tensors_in(manifest: Manifest, file: FileEntry, chunk: int) -> list[str]:
    """The tensors (with slot) that have bytes in a chunk; the header if it begins there."""
    lo, hi = chunk * file.chunk_bytes, (chunk + 1) * file.chunk_bytes
    index = manifest.files.index(file)
    spans = []
    for name, entry in manifest.tensors.items():
        for slot, held in entry.slots.items():
            for shard in held.shards:
                if shard.file == index:
                    count = shard.flat[1] - shard.flat[0]
                    end = shard.offset + count * ITEM_BYTES[held.dtype]
                    spans.append((shard.offset, end, f"{name} ({slot})"))
    spans.sort()
    first = bisect.bisect_left([span[1] for span in spans], lo + 1)
    names = [name for start, _, name in spans[first:] if start < hi]
    return (["the header"] if lo == 0 else []) + names


def _other_model(what: str) -> CheckpointError:
    return CheckpointError(
        what, remedy="resume with the recipe stored in the checkpoint (`msctl ckpt show` prints it)"
    )
