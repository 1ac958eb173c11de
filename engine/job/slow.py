"""Slow ranks while the job runs: own work of every step, from heartbeats into the detector.

The statistic is `engine/diagnose/online.py`; here rows are put together, and a rank has to be named
several times, and to have been slow in most steps, before anybody is told: on a busy machine every
rank is slow now and then.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.diagnose.online import Stream
from engine.diagnose.peers import places
from engine.diagnose.straggler import Slow
from engine.spec.layout import ParallelLayout

MIN_EXCESS = 0.3
"""Own work above that of peers from which a rank is called slow."""
_WINDOW = 24
_EVERY = 4
"""Steps between two looks."""
_VOTES = 3
_MOST_OPEN = 64
_MOSTLY = 0.75
"""Share of the window's steps in which a rank must have been slow."""
_PEERS = 3


class SlowRanks(NamedTuple):
    """Who is slow, and by how much."""

    ranks: tuple[int, ...]
    excess: float
    confidence: float
    what: str


class SlowWatch:
    """Collects (rank, step, seconds, own seconds) and looks from time to time."""

    def __init__(self, layout: ParallelLayout) -> None:
        import numpy as np

        self._layout, self._np = layout, np
        ranks = np.arange(layout.world_size, dtype=np.int32)
        self._stream = Stream(places(layout, ranks), ranks, window=_WINDOW)
        self._open: dict[int, dict[int, float]] = {}
        self._votes: dict[tuple[int, ...], int] = {}
        self._told: set[int] = set()
        self._first = True
        self._rows = 0
        self._recent: list[list[float]] = []

    def look(self, works: Sequence[tuple[int, int, float, float]]) -> SlowRanks | None:
        """Take what came; a finding once per rank."""
        found = None
        for rank, step, _, own in works:
            row = self._open.setdefault(step, {})
            row[rank] = own
            if len(row) == self._layout.world_size:
                del self._open[step]
                found = self._push(row) or found
        while len(self._open) > _MOST_OPEN:
            del self._open[min(self._open)]
        return found

    def _push(self, row: dict[int, float]) -> SlowRanks | None:
        if self._first:  # the first step of a start is like no other
            self._first = False
            return None
        values = [row[rank] for rank in range(self._layout.world_size)]
        self._stream.push(self._np.array(values, dtype=self._np.float32))
        self._recent = [*self._recent[1 - _WINDOW :], values]
        self._rows += 1
        if self._rows < _WINDOW // 2 or self._rows % _EVERY:
            return None
        worst = next((s for s in self._stream.check().slow if self._is_slow(s)), None)
        if worst is None or set(worst.ranks) <= self._told:
            self._votes.clear()
            return None
        self._votes[worst.ranks] = self._votes.get(worst.ranks, 0) + 1
        if self._votes[worst.ranks] < _VOTES:
            return None
        self._told |= set(worst.ranks)
        named = ", ".join(map(str, worst.ranks))
        return SlowRanks(
            worst.ranks, worst.now, 0.85,
            f"rank {named} needs {worst.now:.0%} more than its peers for the same work",
        )  # fmt: skip

    def _is_slow(self, slow: Slow) -> bool:
        """By much, lately, in most steps, and against enough peers."""
        if slow.now < MIN_EXCESS or slow.excess < MIN_EXCESS:
            return False
        own = self._np.array(self._recent)
        for rank in slow.ranks:
            stage = self._layout.coord(rank).pp
            peers = [r for r in range(self._layout.world_size)
                     if self._layout.coord(r).pp == stage]  # fmt: skip
            if len(peers) < _PEERS:
                return False
            usual = self._np.median(own[:, peers], axis=1)
            if (own[:, rank] > (1 + MIN_EXCESS) * usual).mean() < _MOSTLY:
                return False
        return True
