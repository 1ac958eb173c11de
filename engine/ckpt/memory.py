"""Restart from the snapshots that a dead run left in this node's memory, without the store.

The spool outlives the ranks. If every rank finds all that it owns in some snapshot of one step, cut
as it needs it, the state is copied from there; otherwise the store is read. Copies of what others
own are the caller's business. What was flushed since is checked against its digests first (paper
4.4: recovery in seconds).
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from engine.ckpt.arena import Spool, Ticket, map_slot
from engine.ckpt.arena import spool_folder as default_spool
from engine.ckpt.catalog import parse_folder
from engine.ckpt.digest import ChunkDigests
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import Piece
from engine.ckpt.save import Gather
from engine.ckpt.store import absolute
from engine.errors import CheckpointError

logger = logging.getLogger(__name__)

_Key = tuple[str, str, tuple[tuple[int, int], ...], tuple[int, int]]


_Maps = dict[tuple[int, int], mmap.mmap]
"""Mapped memory by rank and slot."""


class _Place(NamedTuple):
    """Where a piece lies in memory."""

    ticket: Ticket
    rank: int
    slot: int
    offset: int
    dtype: str


def load_from_memory(
    root: str | Path,
    pieces: Sequence[Piece],
    *,
    gather: Gather,
    spool: Path | None = None,
    at_least: int = 0,
) -> CheckpointMeta | None:
    """Fill the pieces from the newest snapshot that all ranks have whole; None if there is none.

    Called by all ranks together, before a TwoStage of the new run takes the arena.
    pieces    what this rank owns, as it was saved; a rank that owns nothing has no say
    at_least  step below which a snapshot is too old: the store has a newer one
    """
    folder = spool or default_spool(absolute(root))
    found = _snapshots(Spool(folder)) if folder.is_dir() else {}
    usable = {
        name: maps
        for name, places in found.items()
        if _step(places) >= at_least and (maps := _maps(Spool(folder), places, pieces)) is not None
    }
    mine = list(usable)
    votes = [msgspec.json.decode(_bytes(m), type=list[str] | None)
             for m in gather(msgspec.json.encode(mine if pieces else None))]  # fmt: skip
    voters = [set(vote) for vote in votes if vote is not None]
    common = set.intersection(*voters) if voters else set()
    if not common:
        if any(voters):
            logger.warning("no snapshot is whole in memory: this rank has %s of %s here and needs "
                           "one from step %d on", mine, sorted(found), at_least)  # fmt: skip
        return None
    newest = max(common, key=lambda name: parse_folder(name) or (-1, 0))
    for piece in pieces:
        _copy(usable[newest], found[newest][_key(piece)], piece)
    meta = next(iter(found[newest].values())).ticket.meta if pieces else None
    if None in votes:  # those without a say are told
        tells = votes.index(next(vote for vote in votes if vote is not None))
        meta = msgspec.json.decode(
            _bytes(gather(msgspec.json.encode(meta))[tells]), type=CheckpointMeta
        )
    assert meta is not None, "a rank that owns something has its ticket"
    logger.info("step %d restored from memory", meta.step)
    return meta


def _snapshots(spool: Spool) -> dict[str, dict[_Key, _Place]]:
    """By checkpoint folder name: every piece that some rank of this node holds in memory."""
    found: dict[str, dict[_Key, _Place]] = {}
    for rank, slot in spool.tickets():
        ticket = spool.ticket(rank, slot)
        if ticket is None:
            continue
        places = found.setdefault(ticket.folder, {})
        for held in ticket.part.tensors:
            place = _Place(ticket, rank, slot, held.offset, held.dtype)
            places[held.name, held.slot, held.box, held.flat] = place
    return found


def _step(places: dict[_Key, _Place]) -> int:
    return next((place.ticket.step for place in places.values()), -1)


def _maps(spool: Spool, places: dict[_Key, _Place], pieces: Sequence[Piece]) -> _Maps | None:
    """The memory that holds the pieces, None if some is not there, not whole or cut otherwise.

    Once it is mapped it stays readable, should the flusher of a run that has ended free it.
    """
    from engine.ckpt.snapshot import DTYPES

    used = {}
    for piece in pieces:
        place = places.get(_key(piece))
        if place is None or place.dtype != DTYPES.get(piece.tensor.dtype):
            return None
        used[place.rank, place.slot] = place.ticket
    maps: _Maps = {}
    for (rank, slot), ticket in used.items():
        if ticket.part.file is None:
            return None
        try:
            maps[rank, slot] = map_slot(
                spool.image(rank, slot), ticket.part.file.bytes, create=False
            )
        except (OSError, CheckpointError):  # freed meanwhile, or cut short
            return None
        if not _intact(maps[rank, slot], ticket):
            return None
    return maps


def _intact(mapped: mmap.mmap, ticket: Ticket) -> bool:
    file = ticket.part.file
    if file is None:
        return False
    if ticket.state == "pending":
        return True
    digests = ChunkDigests(file.chunk_bytes)
    with memoryview(mapped) as memory:
        digests.update(memory[: file.bytes])
    if digests.finish() == file.digests:
        return True
    logger.warning("snapshot of step %d in memory is damaged and not used", ticket.step)
    return False


def _copy(maps: _Maps, place: _Place, piece: Piece) -> None:
    from engine.ckpt.snapshot import from_host

    size = piece.region.size * piece.tensor.element_size()
    memory = maps[place.rank, place.slot]
    from_host(piece.tensor, np.frombuffer(memory, np.uint8, size, place.offset))


def _key(piece: Piece) -> _Key:
    return piece.name, piece.slot, tuple(piece.box), piece.flat


def _bytes(item: object) -> bytes:
    assert isinstance(item, bytes), "gather returns what it was given"
    return item
