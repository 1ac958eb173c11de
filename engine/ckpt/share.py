"""One reader per byte: replicas that hold the same pieces read a part each and tell one another.

With ZeRO every rank holds what nobody else does and nothing is shared. Without it (zero = 0) all
data-parallel ranks want the same bytes; reading them once and broadcasting spares the store (paper
4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.ckpt.piece import Piece


@dataclass(frozen=True)
class Share:
    """A rank's place among the ranks that hold the same pieces in the same order.

    broadcast(tensor, source) fills the tensor on all members with that of the member at `source`.
    """

    index: int
    size: int
    broadcast: Callable[[Any, int], None]


def split_pieces(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """What each member reads: all elements laid end to end, cut into `size` equal ranges."""
    total = sum(piece.region.size for piece in pieces)
    parts: list[list[Piece]] = []
    for index in range(size):
        lo, hi = total * index // size, total * (index + 1) // size
        parts.append(_within(pieces, lo, hi))
    return parts


def tell(parts: Sequence[Sequence[Piece]], share: Share) -> None:
    """Exchange what was read; every member ends with all pieces filled."""
    for source, pieces in enumerate(parts):
        for piece in pieces:
            share.broadcast(piece.tensor, source)


def _within(pieces: Sequence[Piece], lo: int, hi: int) -> list[Piece]:
    found, at = [], 0
    for piece in pieces:
        first = max(lo - at, 0)
        last = min(hi - at, piece.region.size)
        if last > first:
            begin = piece.flat[0]
            flat = (begin + first, begin + last)
            found.append(replace(piece, flat=flat, tensor=piece.tensor[first:last]))
        at += piece.region.size
    return found
