"""Checkpoints of torch.distributed.checkpoint, both ways, through torch's own writer and reader.

Keys are those of torch's state-dict helpers: `model.NAME` for a weight, `optim.state.NAME.exp_avg`
and `..._sq` for moments. One tensor at a time is held. DCP keeps its index as a pickle; here it is
read by an unpickler that knows the classes of that index and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as index
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from engine.ckpt.catalog import find, read_manifest
from engine.ckpt.geometry import whole
from engine.ckpt.manifest import CheckpointMeta, Manifest
from engine.ckpt.reading import Want, fill
from engine.ckpt.safefile import Planned, plan_image
from engine.ckpt.save import assemble, claim, commit, write_part
from engine.ckpt.snapshot import DTYPES
from engine.ckpt.store import Store, holds, is_url, local, open_store
from engine.errors import CheckpointError
from engine.spec.base import Noun

INDEX = ".metadata"
META = "msctl.meta"
"""Key of the JSON of CheckpointMeta, as a tensor of bytes."""

_INDEX_LIMIT = 1 << 30
_META_LIMIT = 16 << 20
_BLOCK = 16 << 20
_MOMENT = re.compile(r"optim\.state\.(.+)\.(exp_avg|exp_avg_sq)")
_TORCH = {name: dtype for dtype, name in DTYPES.items()}


class DcpReport(Noun, frozen=True, kw_only=True):
    """What was written."""

    where: str
    tensors: int
    bytes: int


def key_of(name: str, slot: str) -> str:
    """The DCP key of a tensor of ours."""
    return f"model.{name}" if slot == "param" else f"optim.state.{name}.{slot}"


def name_of(key: str) -> tuple[str, str] | None:
    """Name and slot of a DCP key; None for what has no place in ours."""
    moment = _MOMENT.fullmatch(key)
    if moment:
        return moment[1], moment[2]
    if key.startswith("model."):
        return key[len("model.") :], "param"
    return None


def export_dcp(source: str | Path, out: str | Path) -> DcpReport:
    """Write a checkpoint as a DCP folder that `torch.distributed.checkpoint.load` reads.

    `out` is a path or an fsspec URL; for a URL torch's own fsspec writer is used.
    """
    store, folder = find(source)
    manifest = read_manifest(store, folder)
    if holds(out, INDEX):
        raise CheckpointError(f"{out} already holds a checkpoint", remedy="name a new --out folder")
    planner = _Planner(store, folder, manifest)
    size = sum(held.numel() * held.element_size() for held in planner.empty.values())
    try:
        with _alone():
            written = dcp.save(
                planner.empty, storage_writer=_writer(out), planner=planner, no_dist=True
            )
    except dcp.CheckpointException as error:
        raise _cause(out, error) from error
    _all_there(written, planner.empty)
    return DcpReport(where=str(out), tensors=len(planner.empty), bytes=size)


def _writer(out: str | Path) -> dcp.FileSystemWriter:
    """torch's writer. It makes no copies ahead: each tensor is asked for when its turn has come."""
    if is_url(out):  # no file here to sync
        return FsspecWriter(str(out), thread_count=1, per_thread_copy_ahead=0, sync_files=False)
    return dcp.FileSystemWriter(local(out), thread_count=1, per_thread_copy_ahead=0)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Without torch's remark that no other process takes part: none is meant to."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning
        )
        yield


def _cause(where: str | Path, error: dcp.CheckpointException) -> CheckpointError:
    """What torch wrapped: an error of ours as it is, one of file system or store in one line."""
    first = next(iter(error.failures.values()))[0]
    if isinstance(first, CheckpointError):
        return first
    lines = str(first).strip().splitlines() or [""]
    return CheckpointError(
        f"{where}: {type(first).__name__}: {lines[0][:200]}",
        remedy="check that the place exists and can be written, and the credentials of a store",
    )


def _all_there(written: index.Metadata, tensors: dict[str, Any]) -> None:
    """Whether torch wrote each tensor before it asked for the next, which ends the one before."""
    for at, info in (written.storage_data or {}).items():
        least = tensors[at.fqn].numel() * tensors[at.fqn].element_size()
        if info.length < least:
            raise CheckpointError(
                f"torch {torch.__version__} wrote {info.length} of {least} bytes of {at.fqn}: "
                "it asks for tensors ahead of their turn",
                remedy="delete what was exported, and export with torch 2.13",
            )


class _Planner(dcp.DefaultSavePlanner):
    """Gives torch's writer each tensor when it is written, and takes its memory back afterwards.

    The writer keeps every tensor of a file until the file is done, though it needs none any more.
    """

    def __init__(self, store: Store, folder: str, manifest: Manifest) -> None:
        super().__init__(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
        self._store, self._folder, self._manifest = store, folder, manifest
        meta = np.frombuffer(msgspec.json.encode(manifest.meta), np.uint8)
        self._meta = torch.from_numpy(meta.copy())
        self._slots: dict[str, tuple[str, str]] = {}
        self._last = torch.empty(0)
        self.empty: dict[str, Any] = {META: self._meta}
        """Keys with tensors that have a shape and no memory."""
        for name, entry in manifest.tensors.items():
            for slot, held in entry.slots.items():
                key = key_of(name, slot)
                self._slots[key] = (name, slot)
                # An expanded scalar: DCP plans by shape and type, and meta tensors are refused.
                self.empty[key] = torch.empty((), dtype=_TORCH[held.dtype]).expand(entry.shape)

    def resolve_data(self, write_item: Any) -> Any:
        """Read one tensor."""
        key = write_item.index.fqn
        if key == META:
            return self._meta
        name, slot = self._slots[key]
        entry = self._manifest.tensors[name]
        dtype = entry.slots[slot].dtype
        self._last.untyped_storage().resize_(0)
        _give_back()
        tensor = self._last = torch.empty(entry.shape, dtype=_TORCH[dtype])
        # Not tensor.numpy(): torch takes back no memory that it has lent.
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        out = (
            np.frombuffer(memoryview(memory), np.uint8) if tensor.nbytes else np.empty(0, np.uint8)
        )
        fill(self._store, self._folder, self._manifest,
             [Want(name, slot, dtype, whole(entry.shape), out)])  # fmt: skip
        return tensor


def _give_back() -> None:
    """Freed memory to the system; glibc keeps the holes between tensors of different sizes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def import_dcp(source: str | Path, out: str | Path) -> str:
    """Make a checkpoint of a DCP folder; returns its name.

    Step, recipe and data position come from an export of ours; of other folders the step is 0.
    """
    reader = _Reader(source)
    meta = reader.meta()
    planned, keys = [], {}
    for key, entry in sorted(reader.tensors().items()):
        place = name_of(key)
        if place is None:
            continue
        dtype = DTYPES.get(entry.properties.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{source}: {key[:80]} has dtype {entry.properties.dtype}, which is not stored",
                remedy=f"convert it to one of {', '.join(_TORCH)}",
            )
        piece = Planned(*place, dtype, whole(tuple(entry.size)))
        planned.append(piece)
        keys[piece] = key
    if not planned:
        raise CheckpointError(
            f"{source}: no key begins with model. or optim.state.",
            remedy="save {'model': ..., 'optim': ...} of torch's get_state_dict",
        )
    image = plan_image(planned, {"format": "msctl", "rank": "0"})
    target = open_store(out)
    folder = claim(target, meta.step)

    def views() -> Iterator[memoryview]:
        for piece in image.planned:
            yield from _blocks(reader.tensor(keys[piece]))

    part = write_part(target, folder, image, views(), rank=0)
    commit(target, folder, assemble(meta, [part], 1))
    return folder


def _blocks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, copied: who is given them does not hold the tensor until the next."""
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    for at in range(0, len(data), _BLOCK):
        yield data[at : at + _BLOCK].copy().data


class _Reader(dcp.FileSystemReader):
    """torch's reader with an index that was read without trust."""

    def __init__(self, source: str | Path) -> None:
        body = open_store(source).get(INDEX, _INDEX_LIMIT)
        if body is None:
            raise CheckpointError(f"{source}: no {INDEX} file", remedy="name a DCP folder")
        super().__init__(str(source) if is_url(source) else local(source))
        if is_url(source):
            remote = FsspecReader(str(source))
            self.fs, self.path = remote.fs, remote.path
        self._index = read_index(body, f"{source}/{INDEX}")
        self._parts: dict[str, list[Any]] = {}
        for at, info in (self._index.storage_data or {}).items():
            self._parts.setdefault(at.fqn, []).append(info)

    def read_metadata(self, *args: Any, **kwargs: Any) -> index.Metadata:
        """The index, read once."""
        return self._index

    def tensors(self) -> dict[str, index.TensorStorageMetadata]:
        """Tensors by key."""
        found = self._index.state_dict_metadata
        return {k: v for k, v in found.items() if isinstance(v, index.TensorStorageMetadata)}

    def tensor(self, key: str) -> torch.Tensor:
        """A whole tensor; one that was stored in one part is in memory once, others twice."""
        entry, parts = self.tensors()[key], self._parts.get(key, [])
        try:
            if len(parts) == 1 and not getattr(parts[0], "transform_descriptors", None):
                return self._part(key, entry, parts[0])
            tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
            with _alone():
                dcp.load({key: tensor}, storage_reader=self, no_dist=True)
            return tensor
        except dcp.CheckpointException as error:
            raise _cause(str(self.path), error) from error

    def _part(self, key: str, entry: index.TensorStorageMetadata, info: Any) -> torch.Tensor:
        """What torch's reader does with an item, without a second tensor to copy it to."""
        path = self.fs.concat_path(self.path, info.relative_path)
        try:
            with self.fs.create_stream(path, "rb") as stream:
                part = torch.load(
                    self._slice_file(stream, info), map_location="cpu", weights_only=True
                )
            same = (part.shape, part.dtype) == (entry.size, entry.properties.dtype)
        except Exception as error:  # a broken archive may raise anything
            raise CheckpointError(
                f"{path}: {key[:80]} cannot be read: {type(error).__name__}: {str(error)[:200]}",
                remedy="save it again with torch.distributed.checkpoint",
            ) from error
        if not same:
            raise CheckpointError(
                f"{path}: {key[:80]} is no {entry.properties.dtype} of {list(entry.size)}",
                remedy="save it again with torch.distributed.checkpoint",
            )
        return part

    def meta(self) -> CheckpointMeta:
        """What an export of ours put in, or step 0."""
        entry = self.tensors().get(META)
        if entry is None or entry.size.numel() > _META_LIMIT:
            return CheckpointMeta(step=0, extra={"imported": {"from": str(self.path)}})
        data = torch.empty(entry.size, dtype=torch.uint8)
        with _alone():
            dcp.load({META: data}, storage_reader=self, no_dist=True)
        try:
            return msgspec.json.decode(data.numpy().tobytes(), type=CheckpointMeta)
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f"{self.path}: {META}: {error}", remedy="export the checkpoint again"
            ) from error


_KNOWN = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "MetadataIndex", "TensorProperties", "_MEM_FORMAT_ENCODING", "StorageMeta",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint._extension": (),
    "torch": ("Size", "strided"),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
    "pathlib": ("PosixPath", "PurePosixPath", "Path"),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Builds the objects of a DCP index and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """A known class, or an element type."""
        if name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into an index")


def read_index(body: bytes, where: str) -> index.Metadata:
    """A `.metadata` file; raises CheckpointError on anything that is not one."""
    try:
        found = _Unpickler(io.BytesIO(body)).load()
    except Exception as error:  # a broken pickle may raise anything
        raise CheckpointError(
            f"{where}: not an index of torch.distributed.checkpoint: {str(error)[:200]}",
            remedy="name a folder that torch.distributed.checkpoint.save wrote",
        ) from error
    if not isinstance(found, index.Metadata) or not isinstance(found.state_dict_metadata, dict):
        raise CheckpointError(f"{where}: holds no index", remedy="name a DCP folder")
    return found
