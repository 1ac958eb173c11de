"""One reader per byte: replicas that hold the same pieces read some chunks each, and tell the rest.

With ZeRO every rank holds what nobody else does and nothing is shared. Without it (zero = 0) all
data-parallel ranks want the same bytes; reading them once and broadcasting spares the store (paper
4.4). Chunks are dealt out whole, so that no chunk is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.ckpt.reading import Bytes, Job

BLOCK_BYTES = 32 << 20
"""About what a member reads at a time, while it tells the block before."""

_CLEARLY = 0.8


@dataclass(frozen=True)
class Share:
    """A rank's place among the ranks that hold the same pieces in the same order.

    broadcast(data, source) fills the bytes on all members with those of the member at `source`
    may_read_all  whether members may each read everything where that is measured to be faster
    """

    index: int
    size: int
    broadcast: Callable[[Any, int], None]
    may_read_all: bool = True


def rounds_of(jobs: Sequence[Job], size: int) -> list[list[Sequence[Job]]]:
    """Who reads what in which round: `rounds[r][m]` are the chunks of member m."""
    if not jobs:
        return [[() for _ in range(size)]]
    chunk = max(job.file.chunk_bytes for job in jobs)
    each = max(1, min(BLOCK_BYTES // chunk, -(-len(jobs) // size)))
    blocks = [jobs[at : at + each] for at in range(0, len(jobs), each)]
    blocks += [()] * (-len(blocks) % size)
    return [blocks[at : at + size] for at in range(0, len(blocks), size)]


def tell(blocks: Sequence[Sequence[Job]], share: Share) -> None:
    """Exchange what each member has read; every member ends with all of it."""
    for source, jobs in enumerate(blocks):
        views = [view for job in jobs for view in job.memory()]
        if not views:
            continue
        packed = (
            np.concatenate(views) if source == share.index else np.empty(_size(views), np.uint8)
        )
        share.broadcast(packed, source)
        if source != share.index:
            at = 0
            for view in views:
                view[:] = packed[at : at + len(view)]
                at += len(view)


def direct_is_faster(read_s: float, tell_s: float, size: int) -> bool:
    """Whether reading what the others read takes clearly less time than being told.

    Both times are of one round: a member's own block read, all members' blocks exchanged.
    """
    return (size - 1) * read_s < _CLEARLY * tell_s


def _size(views: Sequence[Bytes]) -> int:
    return sum(len(view) for view in views)
