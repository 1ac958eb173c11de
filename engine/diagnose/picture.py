"""What the HTML page draws: the layout's ranks with their speed and their history, folded to bytes.

Everything is a small array, so that 12,288 ranks make a page of about a megabyte.
"""

import base64
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.finding import Report
from engine.diagnose.heatmap import heat_map
from engine.diagnose.load import Spans
from engine.diagnose.parts import COMPUTE, LABELS, PARTS
from engine.diagnose.peers import excess, places
from engine.diagnose.times import own_work, steady

_HISTORY = 40
"""Columns of a rank's history."""
_SCALE = 500.0
"""Excess is stored as a byte: 0.1 is 50, above 0.5 saturates."""


class Picture(NamedTuple):
    """Arrays of the page, as JSON-ready values."""

    values: dict[str, object]


def picture_of(report: Report, spans: Spans | None) -> Picture:
    """The page's arrays; without spans only the layout and the waits are drawn."""
    degrees = {axis: report.layout.get(axis, 1) for axis in ("tp", "pp", "dp")}
    world = max(report.world, 1)
    values: dict[str, object] = {
        "world": world,
        "degrees": degrees,
        "labels": LABELS,
        "bad": sorted({r for f in report.findings[:8] for r in f.ranks}),
    }
    if spans is not None and steady(spans).any():
        values |= _arrays(spans, world)
    return Picture(values)


def _arrays(spans: Spans, world: int) -> dict[str, object]:
    at = places(spans.layout, spans.ranks)
    over = excess(own_work(spans, COMPUTE), at)
    folded = _fold(over, _HISTORY)
    history = np.zeros((world, folded.shape[1]), np.uint8)
    history[spans.ranks] = np.clip(folded * _SCALE, 0, 255).round()
    mean = np.zeros(world, np.float32)
    mean[spans.ranks] = over.mean(axis=1)
    heat = heat_map(spans, rows=96, columns=120)
    use = steady(spans)
    numbers = spans.steps[use]
    parts = {
        part: [round(float(v), 6) for v in _of_all(spans, part, use, world)]
        for part in PARTS
        if spans.seconds[part][:, use].any()
    }
    return {
        "excess": [round(float(v), 4) for v in mean],
        "history": base64.b64encode(history.tobytes()).decode(),
        "columns": int(folded.shape[1]),
        "scale": _SCALE,
        "first": int(numbers[0]),
        "last": int(numbers[-1]),
        "parts": parts,
        "heat": {
            "cells": [[round(float(v), 3) for v in row] for row in heat.cells],
            "labels": heat.labels,
            "ranks": heat.ranks,
            "steps": heat.steps,
        },
    }


def _of_all(spans: Spans, part: str, use: NDArray[np.bool_], world: int) -> NDArray[np.float32]:
    """Mean seconds of a part by rank number, zeros for ranks without a file."""
    row = np.zeros(world, np.float32)
    row[spans.ranks] = spans.seconds[part][:, use].mean(axis=1)
    return row


def _fold(values: NDArray[np.float32], columns: int) -> NDArray[np.float32]:
    """Means of consecutive steps, at most so many columns."""
    width = values.shape[1]
    if width <= columns:
        return values
    edges = np.linspace(0, width, columns + 1).astype(int)
    sums = np.add.reduceat(values, edges[:-1], axis=1)
    return np.asarray(sums / np.diff(edges), np.float32)
