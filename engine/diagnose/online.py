"""The straggler detector on a running job's stream, and a forecast of what will hurt.

A driver feeds one row of own work per step. The same statistic as afterwards runs on a sliding
window; a trend that will pass the limit is reported before it does (an open question of the paper).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.peers import Places, excess
from engine.diagnose.straggler import Slow, find_slow

LIMIT = 0.05
"""Five per cent of own work: what a forecast warns of."""
_TREND_Z = 6.0


class Forecast(NamedTuple):
    """A rank whose excess grows and will pass the limit."""

    rank: int
    now: float
    """Excess at the end of the window."""
    per_step: float
    steps_left: int
    """Steps until the limit is passed at this pace."""
    z: float


class Warned(NamedTuple):
    """What the stream shows at one step."""

    slow: tuple[Slow, ...]
    forecasts: tuple[Forecast, ...]


class Stream:
    """A sliding window over a job's own work; `push` one step, ask when it suits."""

    def __init__(
        self, at: Places, ranks: NDArray[np.int32], *, window: int = 128, node: int = 8
    ) -> None:
        self._at, self._ranks, self._node = at, ranks, node
        self._own = np.zeros((len(ranks), window), np.float32)
        self._count = 0

    @property
    def steps(self) -> int:
        """Steps in the window."""
        return min(self._count, self._own.shape[1])

    def push(self, own_s: NDArray[np.float32]) -> None:
        """Add one step: seconds of own work of every rank, in the order of `ranks`."""
        self._own[:, self._count % self._own.shape[1]] = own_s
        self._count += 1

    def check(self, *, horizon: int = 200) -> Warned:
        """Slow ranks of the window, and ranks that will be within `horizon` steps."""
        own = self._window()
        if own.shape[1] < 8:
            return Warned((), ())
        slow = find_slow(own, self._at, self._ranks, node=self._node)
        known = {rank for s in slow for rank in s.ranks if s.now >= LIMIT}
        soon = [
            f for f in forecast(own, self._at, self._ranks, horizon=horizon) if f.rank not in known
        ]
        return Warned(tuple(slow), tuple(soon))

    def _window(self) -> NDArray[np.float32]:
        """The window in the order of time."""
        width = self._own.shape[1]
        if self._count <= width:
            return self._own[:, : self._count]
        return np.roll(self._own, -(self._count % width), axis=1)


def forecast(
    own: NDArray[np.float32], at: Places, ranks: NDArray[np.int32], *, horizon: int = 200
) -> list[Forecast]:
    """Ranks below the limit whose excess grows surely enough to pass it within the horizon.

    The slope is that of a line through the clipped excess; its error comes from the spread of all
    ranks' slopes, so that noise common to the fleet warns of nobody. The last quarter must lie
    above the one before by more than noise as well: a single jump that is over is no trend.
    """
    over = excess(own, at)
    noise = float(1.4826 * np.median(np.abs(over - np.median(over, axis=1, keepdims=True))))
    over = np.clip(over, -5 * noise, 5 * noise)  # a pause of a few steps is no trend
    steps = over.shape[1]
    x = np.arange(steps, dtype=np.float32)
    x -= x.mean()
    slope = over @ x / float(x @ x)
    middle = float(np.median(slope))
    spread = max(
        float(1.4826 * np.median(np.abs(slope - middle))), noise / float(x @ x) ** 0.5, 1e-9
    )
    z = (slope - middle) / spread
    now = over.mean(axis=1) + slope * (steps - 1) / 2
    quarter = max(2, steps // 4)
    late, before = over[:, -quarter:].mean(axis=1), over[:, -2 * quarter : -quarter].mean(axis=1)
    rising = late - before > noise * (2 / quarter) ** 0.5
    found = []
    for row in np.flatnonzero((z > _TREND_Z) & rising & (now < LIMIT) & (slope > 0)).tolist():
        left = (LIMIT - float(now[row])) / float(slope[row])
        if left <= horizon:
            found.append(
                Forecast(
                    int(ranks[row]), float(now[row]), float(slope[row]), int(left), float(z[row])
                )
            )
    return sorted(found, key=lambda f: f.steps_left)
