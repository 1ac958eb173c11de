"""Saves that the store has not taken yet, and when to complain about it.

A flush that is slower than the interval between saves drops a waiting snapshot for a newer one, so
the age of the oldest that waits says little: what counts is how long the store has taken nothing
although something waited.
"""

from typing import NamedTuple


class Arrival(NamedTuple):
    """A save that is in the store, and how long it took from its beginning."""

    step: int
    seconds: float


class Complaint(NamedTuple):
    """The oldest step that waits, for how long the store has taken nothing, and dropped saves."""

    step: int
    seconds: float
    dropped: int


class Backlog:
    """What one run has begun to save; times are seconds of one clock."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._begun: dict[int, float] = {}
        self._owed_s = self._told_s = 0.0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def newest(self) -> int:
        """The newest step that waits; not of an empty backlog."""
        return max(self._begun)

    def begin(self, step: int, now_s: float, *, dropped: int = -1) -> None:
        """A save was begun, perhaps in the place of one that waited."""
        if not self._begun:
            self._owed_s = now_s
        if self._begun.pop(dropped, None) is not None:
            self._dropped += 1
        self._begun[step] = now_s

    def arrive(self, limit: int, now_s: float) -> list[Arrival]:
        """All steps up to `limit` are in the store."""
        came = [step for step in self._begun if step <= limit]
        arrivals = [Arrival(step, now_s - self._begun.pop(step)) for step in sorted(came)]
        if arrivals:
            self._owed_s = min(self._begun.values(), default=now_s)
            self._dropped = 0
        return arrivals

    def complaint(self, now_s: float) -> Complaint | None:
        """What to say if it takes too long, once per deadline."""
        late_s = now_s - self._owed_s if self._begun else 0.0
        if late_s <= self._deadline_s or now_s - self._told_s <= self._deadline_s:
            return None
        self._told_s = now_s
        return Complaint(min(self._begun), late_s, self._dropped)

    def clear(self) -> None:
        """Nothing waits any more."""
        self._begun.clear()
