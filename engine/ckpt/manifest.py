"""The manifest: what a checkpoint holds and where every element of it lies.

One JSON document per checkpoint, written after all data and named, with its digest, by the
COMMITTED marker. It is read as hostile: bounded, strictly typed, and every reference in it is
checked before use.
"""

import re
from collections.abc import Iterator
from math import prod
from typing import Annotated, Any

import msgspec
import xxhash
from msgspec import Meta, field

from engine.ckpt.geometry import Region, coverage, fault
from engine.ckpt.piece import SLOTS
from engine.errors import CheckpointError
from engine.spec.base import Count, Noun, Size
from engine.spec.layout import ParallelLayout

VERSION = 1
MANIFEST = "manifest.json"
COMMITTED = "COMMITTED"
MANIFEST_LIMIT = 1 << 30
"""Longest manifest that is read, in bytes; 8,192 ranks of a 530B model need about 60 MiB."""

MARKER_LIMIT = 4096
CHUNK_BYTES = 4 << 20
"""Bytes of a file under one digest: small enough to name the damage, large enough to be cheap."""

CHUNK_LIMIT = 1 << 30
"""Largest chunk that is read: all of it may be needed in memory to check its digest."""

DIMS_LIMIT = 8
SIZE_LIMIT = 1 << 60
"""Most bytes of a file and elements of a tensor: offsets stay within 64 bits."""

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1}
"""Element types by their safetensors names."""

Json = dict[str, Any]
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Names of files that a marker or manifest may give."""


class CheckpointMeta(Noun, frozen=True, kw_only=True):
    """What must survive a restart besides tensors."""

    step: Annotated[Size, Meta(description="optimizer steps done")]
    recipe_toml: str = ""
    layout: ParallelLayout = ParallelLayout()
    rng: Json = field(default_factory=dict)
    data: Json = field(default_factory=dict)
    extra: Json = field(default_factory=dict)
    run: str = ""


class FileEntry(Noun, frozen=True, kw_only=True):
    """One safetensors file: its exact size, and the xxh3-128 of each chunk, in hex, joined."""

    name: str
    bytes: Size
    chunk_bytes: Count = CHUNK_BYTES
    digests: str
    rank: Size = 0

    @property
    def chunks(self) -> int:
        """How many chunks, and so digests, the file has."""
        return -(-self.bytes // self.chunk_bytes)

    def digest(self, chunk: int) -> str:
        """The expected digest of a chunk, 32 hex digits."""
        return self.digests[32 * chunk : 32 * chunk + 32]


class Shard(Noun, frozen=True, kw_only=True):
    """Where one range of a tensor lies: file (index into `files`), byte offset, box and range."""

    file: Size
    offset: Size
    box: tuple[tuple[int, int], ...]
    flat: tuple[int, int]


class SlotEntry(Noun, frozen=True, kw_only=True):
    """One slot of a tensor: element type and all shards."""

    dtype: str
    shards: tuple[Shard, ...]


class TensorEntry(Noun, frozen=True, kw_only=True):
    """One tensor of the state: global shape and its slots."""

    shape: tuple[int, ...]
    slots: dict[str, SlotEntry]

    def region(self, shard: Shard) -> Region:
        """What a shard holds."""
        return Region(self.shape, shard.box, shard.flat)


class Manifest(Noun, frozen=True, kw_only=True):
    """A whole checkpoint."""

    version: int = VERSION
    created_s: float
    world: Count
    meta: CheckpointMeta
    versions: dict[str, str] = field(default_factory=dict)
    files: tuple[FileEntry, ...]
    tensors: dict[str, TensorEntry]

    @property
    def bytes(self) -> int:
        """Size of all data files."""
        return sum(entry.bytes for entry in self.files)

    @property
    def elements(self) -> int:
        """Parameters of the model."""
        return sum(prod(entry.shape) for entry in self.tensors.values())

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots that any tensor has, in the order of SLOTS."""
        found = {slot for entry in self.tensors.values() for slot in entry.slots}
        return tuple(slot for slot in SLOTS if slot in found)

    def covers(self) -> list[str]:
        """Holes and overlaps, one sentence per tensor and slot; empty if all is held once."""
        faults = []
        for name, entry in self.tensors.items():
            checked: dict[tuple[tuple[object, ...], ...], str | None] = {}
            for slot, held in entry.slots.items():
                key = tuple((shard.box, shard.flat) for shard in held.shards)
                if key not in checked:
                    checked[key] = coverage(entry.shape, [entry.region(s) for s in held.shards])
                if checked[key]:
                    faults.append(f"{name} ({slot}): {checked[key]}")
        return faults


class Marker(Noun, frozen=True, kw_only=True):
    """The content of COMMITTED: which manifest makes the folder a checkpoint."""

    manifest: str = MANIFEST
    bytes: Size
    xxh3_128: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


def encode(manifest: Manifest) -> tuple[bytes, bytes]:
    """The manifest and its COMMITTED marker as the bytes to write."""
    body = msgspec.json.encode(manifest)
    marker = Marker(bytes=len(body), xxh3_128=xxhash.xxh3_128_hexdigest(body))
    return body, msgspec.json.encode(marker)


def decode_marker(data: bytes, where: str) -> Marker:
    """Read a COMMITTED marker; raises CheckpointError."""
    try:
        return msgspec.json.decode(data, type=Marker)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _torn(f"{where}/{COMMITTED}: {error}") from error


def decode(data: bytes, marker: Marker, where: str) -> Manifest:
    """Read a manifest, check it against its marker and check every reference in it."""
    if len(data) != marker.bytes or xxhash.xxh3_128_hexdigest(data) != marker.xxh3_128:
        raise _torn(f"{where}/{marker.manifest}: content does not match the digest in {COMMITTED}")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _torn(f"{where}/{marker.manifest}: {error}") from error
    if manifest.version != VERSION:
        raise CheckpointError(
            f"{where}/{marker.manifest}: version = {manifest.version}, this msctl reads {VERSION}",
            remedy="open the checkpoint with the msctl version that `versions.msctl` in it names",
        )
    found = next(faults(manifest), None)
    if found:
        raise _torn(f"{where}/{marker.manifest}: {found}")
    return manifest


def faults(manifest: Manifest) -> Iterator[str]:
    """References in a manifest that cannot be right; holes and overlaps are `Manifest.covers`."""
    seen: set[str] = set()
    for entry in manifest.files:
        if not PLAIN_NAME.fullmatch(entry.name) or entry.name in (MANIFEST, COMMITTED):
            yield f"file name {entry.name[:80]!r} is not a plain name"
        if entry.name in seen:
            yield f"file {entry.name} is listed twice"
        if entry.bytes > SIZE_LIMIT or entry.chunk_bytes > CHUNK_LIMIT:
            yield f"{entry.name}: file or chunk too large to be read"
            continue
        if len(entry.digests) != 32 * entry.chunks or re.search("[^0-9a-f]", entry.digests):
            yield f"{entry.name}: {len(entry.digests)} hex digits for {entry.chunks} chunks"
        seen.add(entry.name)
    for name, tensor in manifest.tensors.items():
        if len(tensor.shape) > DIMS_LIMIT:
            yield f"{name}: {len(tensor.shape)} dims, at most {DIMS_LIMIT} are read"
            continue
        if max(prod(tensor.shape), *tensor.shape, 0) > SIZE_LIMIT:
            yield f"{name}: more than 2^60 elements"
            continue
        for slot, held in tensor.slots.items():
            if slot not in SLOTS:
                yield f"{name}: unknown slot {slot!r}"
            for shard in held.shards:
                wrong = _shard_fault(manifest, tensor, held.dtype, shard)
                if wrong:
                    yield f"{name} ({slot}): {wrong}"


def _shard_fault(manifest: Manifest, tensor: TensorEntry, dtype: str, shard: Shard) -> str | None:
    if dtype not in ITEM_BYTES:
        return f"dtype = {dtype!r}, known are {', '.join(ITEM_BYTES)}"
    if shard.file >= len(manifest.files):
        return f"file = {shard.file}, there are {len(manifest.files)}"
    region = tensor.region(shard)
    wrong = fault(region)
    if wrong:
        return wrong
    if shard.offset + region.size * ITEM_BYTES[dtype] > manifest.files[shard.file].bytes:
        return f"shard ends behind the end of {manifest.files[shard.file].name}"
    return None


def _torn(what: str) -> CheckpointError:
    return CheckpointError(
        what, remedy="resume from an older checkpoint; `msctl ckpt list` shows which ones are valid"
    )
