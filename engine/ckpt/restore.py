"""Load a checkpoint into the memory of a run, whatever layout it was saved under.

Each rank reads the byte ranges of its own pieces, checks their digests and nothing else. If the
newest checkpoint turns out to be damaged, all ranks fall back together to the one before it, and
say so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from engine.ckpt.catalog import open_root, parse_folder, read_manifest, valid_folders
from engine.ckpt.manifest import CheckpointMeta, Manifest
from engine.ckpt.piece import Piece
from engine.ckpt.reading import ReadReport, Want, fill
from engine.ckpt.save import Gather
from engine.ckpt.share import Share, split_pieces, tell
from engine.ckpt.snapshot import DTYPES
from engine.ckpt.store import Store, open_store, split
from engine.errors import CheckpointError, EngineError

logger = logging.getLogger(__name__)


def load_checkpoint(
    folder: str | Path,
    pieces: Sequence[Piece],
    *,
    gather: Gather | None = None,
    share: Share | None = None,
    threads: int = 2,
) -> CheckpointMeta:
    """Fill the pieces' tensors, bitwise as saved, and return what else was saved.

    folder  one checkpoint (`.../step-00000100`): that one or an error; or a folder of checkpoints:
    the newest valid one, with fallback to older ones gather  as in save_checkpoint; needed with
    more than one rank when falling back must be agreed on Raises  CheckpointError: absent, torn,
    damaged, or of another model. Tensors may then be half filled.
    """
    root, name = split(folder)
    if parse_folder(name):
        store, tried = open_store(root), [name]
    else:
        store = open_root(folder)
        tried = _candidates(store, gather)
    parts = split_pieces(pieces, share.size) if share else [list(pieces)]
    errors = []
    for candidate in tried:
        meta, error = _try(store, candidate, parts[share.index if share else 0], threads)
        error = _worst(gather, error)
        if error is None and meta is not None:
            if share:
                tell(parts, share)
            return meta
        assert error is not None, f"no result from {candidate}"
        errors.append(error)
        logger.warning("%s/%s cannot be loaded: %s", store.url, candidate, error.what)
    if errors:
        raise errors[0]
    raise CheckpointError(
        f"{folder}: no committed checkpoint here",
        remedy="start without resuming, or name the folder that holds the `step-...` folders",
    )


def read_pieces(
    store: Store, name: str, manifest: Manifest, pieces: Sequence[Piece], *, threads: int = 2
) -> ReadReport:
    """Read the regions of the pieces; moments that a weights-only checkpoint lacks become zero."""
    weights_only = manifest.slots == ("param",)
    wants, staged = [], []
    for piece in pieces:
        if weights_only and piece.slot != "param":
            piece.tensor.zero_()
            continue
        host = piece.tensor.detach()
        if host.device.type != "cpu":
            host = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
            staged.append((piece.tensor, host))
        wants.append(_want(piece, host))
    if weights_only and len(wants) < len(pieces):
        logger.warning("%s/%s holds weights only: optimizer moments start at zero", store.url, name)
    report = fill(store, name, manifest, wants, threads=threads)
    for device, host in staged:
        device.copy_(host, non_blocking=True)
    return report


def _want(piece: Piece, host: torch.Tensor) -> Want:
    dtype = DTYPES.get(host.dtype)
    if dtype is None or not host.is_contiguous() or host.numel() != piece.region.size:
        raise CheckpointError(
            f"{piece.name} ({piece.slot}): a {host.dtype} tensor of {host.numel()} elements "
            f"cannot take range {list(piece.flat)}",
            remedy="give a contiguous one-dimensional view of exactly the owned range",
        )
    out = host.view(torch.uint8).numpy() if host.numel() else np.empty(0, np.uint8)
    return Want(piece.name, piece.slot, dtype, piece.region, out)


def _try(
    store: Store, name: str, pieces: Sequence[Piece], threads: int
) -> tuple[CheckpointMeta | None, EngineError | None]:
    try:
        manifest = read_manifest(store, name)
        _same_model(manifest, pieces, f"{store.url}/{name}")
        report = read_pieces(store, name, manifest, pieces, threads=threads)
        logger.info("read bytes=%d for wanted=%d", report.read_bytes, report.wanted_bytes)
    except EngineError as error:
        return None, error
    return manifest.meta, None


def _same_model(manifest: Manifest, pieces: Sequence[Piece], where: str) -> None:
    missing = sorted({p.name for p in pieces} - set(manifest.tensors))
    if missing:
        raise CheckpointError(
            f"{where}: {len(missing)} tensors of the model are not in it, e.g. {missing[0]}",
            remedy="resume with the recipe stored in the checkpoint (`msctl ckpt show` prints it)",
        )


def _candidates(store: Store, gather: Gather | None) -> list[str]:
    """Valid folders newest first; rank 0's view counts, so that all ranks try the same ones."""
    mine = list(valid_folders(store))
    if gather is None:
        return mine
    first = gather(msgspec.json.encode(mine))[0]
    assert isinstance(first, bytes), "gather returns what it was given"
    return msgspec.json.decode(first, type=list[str])


def _worst(gather: Gather | None, error: EngineError | None) -> EngineError | None:
    """The first error of any rank."""
    if gather is None:
        return error
    mine = msgspec.json.encode((error.what, error.remedy) if error else None)
    for rank, item in enumerate(gather(mine)):
        assert isinstance(item, bytes), "gather returns what it was given"
        other = msgspec.json.decode(item, type=tuple[str, str] | None)
        if other:
            return error or CheckpointError(f"rank {rank}: {other[0]}", remedy=other[1])
    return None
