"""Where the step time went: seconds of each part, over all ranks and per rank.

The first step of a window carries set-up and warm-up and is left out when more are there.
Bubble and exposed pipeline transfers are one wait on the clock; `attribution.py` parts them by
simulation.
"""

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.finding import RankTimes, Times, TimeShare
from engine.diagnose.load import Spans
from engine.diagnose.parts import COMPUTE, OWN, PARTS
from engine.diagnose.peers import excess, places

_SHOWN = 64
"""Ranks listed one by one; the rest is in the averages."""


def steady(spans: Spans) -> NDArray[np.bool_]:
    """Columns that count: complete on some rank, without the first step if others are there."""
    complete: NDArray[np.bool_] = np.asarray(np.isfinite(spans.step_s).any(axis=0))
    if complete.sum() > 2:
        complete[int(np.argmax(complete))] = False
    return complete


def own_work(spans: Spans, parts: tuple[str, ...] = OWN) -> NDArray[np.float32]:
    """Seconds [ranks, steady steps] of what a rank does by itself."""
    use = steady(spans)
    total = np.zeros((len(spans.ranks), int(use.sum())), np.float32)
    for part in parts:
        total += spans.seconds[part][:, use]
    return total


def step_times(spans: Spans) -> Times | None:
    """The average step by part; None if no step was completed."""
    use = steady(spans)
    if not use.any():
        return None
    inside = {part: spans.seconds[part][:, use] for part in PARTS}
    step_s = float(sum(values.mean() for values in inside.values()))
    shares = []
    for part in PARTS:
        seconds = float(inside[part].mean())
        if seconds > 0:
            shares.append(TimeShare(name=part, seconds=seconds, share=seconds / step_s))
    numbers = spans.steps[use]
    return Times(
        steps=(int(numbers[0]), int(numbers[-1])),
        ranks=len(spans.ranks),
        step_s=step_s,
        parts=tuple(shares),
        per_rank=_per_rank(spans, use, inside),
        notes=_notes(spans),
    )


def _per_rank(
    spans: Spans, use: NDArray[np.bool_], inside: dict[str, NDArray[np.float32]]
) -> tuple[RankTimes, ...]:
    at = places(spans.layout, spans.ranks)
    over = excess(own_work(spans, COMPUTE), at).mean(axis=1)
    means = {part: values.mean(axis=1) for part, values in inside.items()}
    step_s = sum(means.values(), np.zeros(len(spans.ranks), np.float32))
    rows = []
    for row in np.argsort(-over, kind="stable")[:_SHOWN].tolist():
        rank = int(spans.ranks[row])
        coord = spans.coord(rank)
        rows.append(
            RankTimes(
                rank=rank,
                tp=coord.tp,
                pp=coord.pp,
                dp=coord.dp,
                step_s=float(step_s[row]),
                parts_s={p: float(v[row]) for p, v in means.items() if v[row] > 0},
                excess=float(over[row]),
            )
        )
    return tuple(rows)


def _notes(spans: Spans) -> tuple[str, ...]:
    dropped = sum(tail.dropped for tail in spans.tails.values())
    notes = []
    if dropped:
        notes.append(f"{dropped} events were dropped under pressure: sums are too small by those")
    alone = spans.layout.tp * spans.layout.dp < 2 and len(spans.ranks) > 1
    if alone:
        notes.append("a stage is one rank here: no rank has a peer with the same work")
    return tuple(notes)
