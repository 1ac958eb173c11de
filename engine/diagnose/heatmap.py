"""Rank x step: how much longer own work takes than that of peers, folded to a size that fits.

Rows follow the layout (stage by stage, replica by replica), so that a slow node, stage or
replica shows as a band. Cells hold the excess over peers (0.1 = ten per cent more), the worst
of the ranks and steps folded into them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.load import Spans
from engine.diagnose.parts import COMPUTE
from engine.diagnose.peers import excess, places
from engine.diagnose.times import own_work, steady

SHADES = " .:-=+*#%@"
_TOP = 0.2
"""Excess of the darkest shade."""


class HeatMap(NamedTuple):
    """Folded excess: cells [rows, columns], label and ranks of each row, steps."""

    cells: NDArray[np.float32]
    labels: tuple[str, ...]
    ranks: tuple[tuple[int, int], ...]
    """(first, last) rank of each row."""
    steps: tuple[int, ...]


def heat_map(spans: Spans, *, rows: int = 64, columns: int = 80) -> HeatMap:
    """Excess of forward and backward over peers, folded to at most rows x columns."""
    over = excess(own_work(spans, COMPUTE), places(spans.layout, spans.ranks))
    numbers = spans.steps[steady(spans)]
    height, width = over.shape
    high = max(1, -(-height // rows))
    wide = max(1, -(-width // columns))
    cells = [
        [_worst(over[r : r + high, c : c + wide]) for c in range(0, width, wide)]
        for r in range(0, height, high)
    ]
    first = [int(spans.ranks[r]) for r in range(0, height, high)]
    last = [int(spans.ranks[min(r + high, height) - 1]) for r in range(0, height, high)]
    labels = tuple(_label(spans, a, b) for a, b in zip(first, last, strict=True))
    return HeatMap(
        np.array(cells, np.float32).reshape(len(first), -1), labels,
        tuple(zip(first, last, strict=True)), tuple(int(n) for n in numbers[::wide]),
    )  # fmt: skip


def text_rows(heat: HeatMap) -> list[str]:
    """One line a row: label and a shade a cell; ten shades from 0 to 20 per cent."""
    width = max((len(label) for label in heat.labels), default=0)
    lines = []
    for label, row in zip(heat.labels, heat.cells, strict=True):
        shades = np.clip(row / _TOP * (len(SHADES) - 1), 0, len(SHADES) - 1).round().astype(int)
        lines.append(f"{label:>{width}} |{''.join(SHADES[s] for s in shades)}|")
    return lines


def _worst(block: NDArray[np.float32]) -> float:
    """The slowest rank's mean over the steps of a cell: one slow rank stays visible."""
    return float(block.mean(axis=1).max()) if block.size else 0.0


def _label(spans: Spans, first: int, last: int) -> str:
    a = spans.coord(first)
    name = f"{first}" if first == last else f"{first}-{last}"
    return f"pp {a.pp} dp {a.dp} rank {name}"
