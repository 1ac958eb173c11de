"""When to save: every so many steps or minutes, as often as failures make it worth, at a spike.

Steps and losses are the same on every rank, so those rules need no agreement. Clocks are not: what
one says is the wish of rank 0, which the ranks agree on together with the loss.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from engine.spec.recipe import CkptSpec

_WINDOW = 50
_WARM = 10
"""Losses before a spike can be told from noise."""

_QUIET = 20
"""Steps after a spike in which another one is the same spike."""

_LEAST_S = 1.0
_FAR = 10_000
_MARGIN = 1.25
"""Saves come this much less often than the store could take them."""


def young_daly_s(stall_s: float, mtbf_s: float) -> float:
    """Seconds between saves that lose least: sqrt(2 x cost of a save x mean time to failure).

    Source: Young, 1974, and Daly, 2006, first order; right while the cost is far below the mean
    time between failures.
    """
    return math.sqrt(2 * stall_s * mtbf_s)


class Policy:
    """The rules of one run on one rank."""

    def __init__(self, spec: CkptSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec, self._clock = spec, clock
        self._last = clock()
        self._stall_s = 0.0
        self._flush_s = 0.0
        self._measured = False
        self._look = 2  # the first step is no measure of the others
        self._began, self._seen = clock(), 0
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self._quiet = 0

    @property
    def interval_s(self) -> float:
        """Seconds between saves by the clock; 0 = right away, infinite = the clock has no say."""
        wanted = [60 * self._spec.every_minutes] if self._spec.every_minutes else []
        if self._spec.auto:
            best = young_daly_s(self._stall_s, 3600 * self._spec.mtbf_h) if self._measured else 0.0
            # Saves faster than the store takes them would only push each other out.
            wanted.append(max(best, _MARGIN * self._flush_s, _LEAST_S if self._measured else 0.0))
        return min(wanted, default=math.inf)

    def wish(self) -> bool:
        """Whether this rank's clock asks for a save after the coming step."""
        return self._clock() - self._last >= self.interval_s

    def is_look_due(self, done: int) -> bool:
        """Whether all ranks ask rank 0's clock after `done` steps; the same on every rank."""
        return bool(self._spec.auto or self._spec.every_minutes) and done >= self._look

    def next_look(self, done: int) -> int:
        """After how many steps in all to ask the clock again: half the way to the next save."""
        step_s = max((self._clock() - self._began) / max(1, self._seen), 1e-6)
        left_s = self.interval_s - (0.0 if self.wish() else self._clock() - self._last)
        return done + max(1, min(_FAR, int(left_s / step_s / 2)))

    def look_at(self, done: int) -> None:
        """Ask again after so many steps in all."""
        self._look = done

    def reason(self, done: int, loss: float, *, asked: bool) -> str:
        """Why to save after `done` steps, empty if there is no reason; call it once per step."""
        self._seen += 1
        spike = self._is_spike(loss)
        every = self._spec.every
        if spike:
            return "loss spike"
        if (every and done % every == 0) or asked:
            return "interval"
        return ""

    def saving(self) -> None:
        """A save begins now."""
        self._last = self._clock()

    def stalled(self, seconds: float) -> None:
        """How long a save held training up; the first, which touches new memory, counts little."""
        self._stall_s = seconds if not self._measured else 0.5 * (self._stall_s + seconds)
        self._measured = True

    def flushed(self, seconds: float) -> None:
        """How long a snapshot took to its commit."""
        self._flush_s = seconds

    def _is_spike(self, loss: float) -> bool:
        limit, seen = self._spec.spike, self._losses
        found = False
        if limit and len(seen) >= _WARM and not self._quiet:
            middle = statistics.median(seen)
            spread = statistics.median(abs(value - middle) for value in seen)
            # 1.4826 makes the median deviation of a normal distribution its standard deviation.
            found = loss > middle + limit * max(1.4826 * spread, 1e-6 * abs(middle))
        self._quiet = _QUIET if found else max(0, self._quiet - 1)
        if not found and math.isfinite(loss):
            seen.append(loss)
        return found
