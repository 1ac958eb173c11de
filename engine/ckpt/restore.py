"""Load a checkpoint into the memory of a run, whatever layout it was saved under.

Each rank reads the byte ranges of its own pieces, checks their digests and nothing else. If the
newest checkpoint turns out to be damaged, all ranks fall back together to the one before it, and
say so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import torch

from engine.ckpt.catalog import open_root, parse_folder, read_manifest, valid_folders
from engine.ckpt.manifest import CheckpointMeta, Manifest
from engine.ckpt.piece import Piece
from engine.ckpt.reading import Job, Want, plan_jobs, run_jobs
from engine.ckpt.save import Gather
from engine.ckpt.share import Share, direct_is_faster, rounds_of, tell
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
            the newest valid one, with fallback to older ones
    gather  as in save_checkpoint; needed with more than one rank
    share   this rank's place among ranks with the same pieces: each byte is then read once
    Raises  CheckpointError: absent, torn, damaged, or of another model. Tensors may then be half
            filled.
    """
    root, name = split(folder)
    if parse_folder(name):
        store, tried = open_store(root), [name]
    else:
        store = open_root(folder)
        tried = _candidates(store, gather)
    errors = []
    for candidate in tried:
        reader = _Reader(store, candidate, pieces, threads)
        error = _worst(gather, reader.open())
        if error is None:
            if share and share.size > 1:
                error = _shared(reader, share, gather)
            else:
                error = _worst(gather, reader.read(reader.jobs))
        if error is None:
            return reader.finish()
        assert error is not None, f"no result from {candidate}"
        errors.append(error)
        logger.warning("%s/%s cannot be loaded: %s", store.url, candidate, error.what)
    if errors:
        raise errors[0]
    raise CheckpointError(
        f"{folder}: no committed checkpoint here",
        remedy="start without resuming, or name the folder that holds the `step-...` folders",
    )


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


class _Reader:
    """One checkpoint as one rank reads it; errors are returned, so that ranks can agree on them."""

    def __init__(self, store: Store, name: str, pieces: Sequence[Piece], threads: int) -> None:
        self._store, self._name, self._threads, self._pieces = store, name, threads, pieces
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._manifest: Manifest | None = None
        self.jobs: list[Job] = []

    @property
    def manifest(self) -> Manifest:
        """The manifest; after `open`."""
        assert self._manifest is not None, "open comes first"
        return self._manifest

    def open(self) -> EngineError | None:
        """Read the manifest, compare it with the model and find what to read."""
        where = f"{self._store.url}/{self._name}"
        try:
            self._manifest = read_manifest(self._store, self._name)
            _same_model(self.manifest, self._pieces, where)
            self.jobs = plan_jobs(self.manifest, self._wants(where))
        except EngineError as error:
            return error
        return None

    def _wants(self, where: str) -> list[Want]:
        """What to read where; moments that a weights-only checkpoint lacks become zero."""
        weights_only = self.manifest.slots == ("param",)
        wants = []
        for piece in self._pieces:
            if weights_only and piece.slot != "param":
                piece.tensor.zero_()
                continue
            host = piece.tensor.detach()
            if host.device.type != "cpu":
                host = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
                self._staged.append((piece.tensor, host))
            wants.append(_want(piece, host))
        if weights_only and len(wants) < len(self._pieces):
            logger.warning("%s holds weights only: optimizer moments start at zero", where)
        return wants

    def read(self, jobs: Sequence[Job]) -> EngineError | None:
        """Read some chunks into the memory they are wanted in."""
        try:
            got = run_jobs(self._store, self._name, self.manifest, jobs, threads=self._threads)
            logger.info("read bytes=%d in %d chunks", got, len(jobs))
        except EngineError as error:
            return error
        return None

    def finish(self) -> CheckpointMeta:
        """All is read: move it to its devices."""
        for device, host in self._staged:
            device.copy_(host, non_blocking=True)
        return self.manifest.meta


def _shared(reader: _Reader, share: Share, gather: Gather | None) -> EngineError | None:
    """Read some chunks each, round by round, and tell the others the round before meanwhile.

    After the first round, all ranks together go over to reading everything themselves if that was
    measured to be faster, and the share allows it.
    """
    rounds = rounds_of(reader.jobs, share.size)
    count = int(max(_numbers(gather, len(rounds))))  # other groups may have more to read
    rounds += [[() for _ in range(share.size)]] * (count - len(rounds))
    with ThreadPoolExecutor(1) as pool:
        begin = time.perf_counter()
        reading = pool.submit(reader.read, rounds[0][share.index])
        for index, blocks in enumerate(rounds):
            error = _worst(gather, reading.result())
            if error is not None:
                return error
            read_s, begin = time.perf_counter() - begin, time.perf_counter()
            if 0 < index < count - 1:
                reading = pool.submit(reader.read, rounds[index + 1][share.index])
            tell(blocks, share)
            if index == 0 and count > 1:
                tell_s = max(_numbers(gather, time.perf_counter() - begin))
                read_s = max(_numbers(gather, read_s))
                if share.may_read_all and direct_is_faster(read_s, tell_s, share.size):
                    logger.info("read in %.3f s, told in %.3f s: all read all", read_s, tell_s)
                    rest = [job for later in rounds[1:] for block in later for job in block]
                    return _worst(gather, reader.read(rest))
                reading = pool.submit(reader.read, rounds[1][share.index])
    return None


def _numbers(gather: Gather | None, mine: float) -> list[float]:
    if gather is None:
        return [mine]
    every = gather(msgspec.json.encode(mine))
    return [msgspec.json.decode(item, type=float) for item in every if isinstance(item, bytes)]


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
