"""Spans made by hand: seconds by part, for tests of what is computed from them."""

import numpy as np

from engine.diagnose.load import Spans, Tail
from engine.diagnose.parts import PARTS


def make_spans(layout, steps=10, *, tails=None, **parts):
    """A run in which every rank spends so many seconds of each step in each part.

    A part is a number or an array [ranks, steps]; the step is the sum of its parts.
    """
    ranks = np.arange(layout.world_size, dtype=np.int32)
    shape = (len(ranks), steps)
    seconds = {part: np.zeros(shape, np.float32) for part in PARTS}
    for part, value in parts.items():
        seconds[part][:] = value
    total = sum(seconds.values(), np.zeros(shape, np.float32))
    return Spans(
        layout, ranks, np.arange(steps, dtype=np.int64), total, seconds, {},
        {int(r): tail_of(layout, int(r)) for r in ranks} | (tails or {}), 1, (),
    )  # fmt: skip


def tail_of(layout, rank, *, opened=(), ended=False, wall_s=100.0, step=5, dropped=0, name="step"):
    """How a rank's file ends."""
    return Tail(
        rank, layout.coord(rank), ended, "", None, step, name, round(wall_s * 1e9), tuple(opened),
        dropped, f"rank-{rank}",
    )  # fmt: skip
