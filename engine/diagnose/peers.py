"""What a rank's time should be: that of the peers with the same work.

Stages differ (embedding, head, layers) and so do the sequences of a replica, so a rank is
compared with the ranks of its stage, and what its replica has in common is taken out. Clocks
are never compared: only durations of own work enter.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.spec.layout import ParallelLayout

_IDLE = np.float32(1e-9)
"""Seconds of work below which a group's usual time says nothing."""


class Places(NamedTuple):
    """Stage and replica of every row of an array."""

    stage: NDArray[np.int32]
    replica: NDArray[np.int32]


def places(layout: ParallelLayout, ranks: NDArray[np.int32]) -> Places:
    """Stage and replica by rank (tp runs fastest, then dp, then pp)."""
    return Places(ranks // (layout.tp * layout.dp), ranks // layout.tp % layout.dp)


def expected(own: NDArray[np.float32], at: Places) -> NDArray[np.float32]:
    """Seconds [ranks, steps] that each rank's peers would take for its work.

    The stage's median of a step times the replica's median ratio to it. A group of fewer than three
    says nothing about its members: a replica of one or two ranks is not taken out.
    """
    by_stage = _group_medians(own, at.stage)[at.stage]
    by_stage = np.asarray(np.maximum(by_stage, _IDLE), np.float32)
    ratio = own / by_stage
    counts = np.bincount(at.replica)
    by_replica = _group_medians(ratio, at.replica)
    by_replica[counts < 3] = 1.0
    if (counts < 3).all() or len(counts) < 2:
        return by_stage
    return np.asarray(by_stage * by_replica[at.replica], np.float32)


def excess(own: NDArray[np.float32], at: Places) -> NDArray[np.float32]:
    """Own work over that of peers, minus one, [ranks, steps]; 0.1 is ten per cent slower.

    Ranks whose stage has no second member, or whose peers do nothing, get zeros.
    """
    usual = expected(own, at)
    result = np.divide(own, usual, out=np.ones_like(own), where=usual > _IDLE) - 1
    alone = np.bincount(at.stage)[at.stage] < 2
    result[alone] = 0.0
    return np.asarray(np.nan_to_num(result, nan=0.0, posinf=0.0, neginf=0.0), np.float32)


def _group_medians(values: NDArray[np.float32], group: NDArray[np.int32]) -> NDArray[np.float32]:
    """Median over the members of each group, [groups, steps]; of two peers the quicker one.

    Of two the slower must not become its own standard.
    """
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    result = np.ones((len(sizes), values.shape[1]), np.float32)
    start = 0
    for number, size in enumerate(sizes.tolist()):
        if size:
            members = values[order[start : start + size]]
            low = (size - 1) // 2
            high = size // 2 if size > 3 else low
            part = np.partition(members, (low, high), axis=0)
            result[number] = (part[low] + part[high]) / 2
        start += size
    return result
