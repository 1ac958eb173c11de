"""The heat map: folding that keeps the worst visible, labels, shades."""

import numpy as np
import pytest
from arrays import make_spans

from engine.diagnose.heatmap import SHADES, HeatMap, heat_map, text_rows
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=4)


def spans(slow, steps=11):
    """Rank 5 is `slow` times slower from step 6 on."""
    forward = np.ones((16, steps), np.float32)
    forward[5, 6:] = slow
    return make_spans(LAYOUT, steps, forward=forward)


def test_small_runs_are_not_folded():
    heat = heat_map(spans(1.5))
    assert heat.cells.shape == (16, 10)  # the first step is warm-up
    assert heat.steps == tuple(range(1, 11))
    right = np.zeros((16, 10))
    right[5, 5:] = 0.5
    assert heat.cells == pytest.approx(right)
    assert heat.ranks == tuple((r, r) for r in range(16))
    assert heat.labels[5] == "pp 0 dp 2 rank 5"
    assert heat.labels[8] == "pp 1 dp 0 rank 8"


def test_a_cell_shows_the_worst_of_its_ranks_over_the_mean_of_its_steps():
    heat = heat_map(spans(1.5), rows=4, columns=3)
    assert heat.cells.shape == (4, 3)  # four ranks and four steps a cell, the last has two
    assert heat.steps == (1, 5, 9)
    assert heat.ranks == ((0, 3), (4, 7), (8, 11), (12, 15))
    assert heat.labels[1] == "pp 0 dp 2 rank 4-7"
    assert heat.cells[1] == pytest.approx([0, 0.375, 0.5])  # three of the second four are slow
    assert np.delete(heat.cells, 1, axis=0) == pytest.approx(0)


@pytest.mark.parametrize(("rows", "height"), [(16, 16), (15, 8), (5, 4), (3, 3), (1, 1)])
def test_never_more_rows_than_asked_for_and_every_rank_in_one(rows, height):
    heat = heat_map(spans(1.5), rows=rows)
    assert len(heat.cells) == len(heat.labels) == height
    ranks = [r for first, last in heat.ranks for r in range(first, last + 1)]
    assert ranks == list(range(16))
    assert heat.cells.max() == pytest.approx(0.5)


def test_ten_shades_from_zero_to_a_fifth():
    cells = np.array([[-1.0, 0.0, 0.098, 0.2, 9.0], [0.011, 0.0112, 0.022, 0.18, 0.0]], np.float32)
    heat = HeatMap(cells, ("a", "long"), ((0, 0), (1, 1)), (1, 2, 3, 4, 5))
    assert text_rows(heat) == ["   a |  =@@|", "long | ..% |"]
    assert len(SHADES) == 10


def test_a_run_without_steps_has_rows_without_cells():
    empty = make_spans(LAYOUT, 3, forward=1.0)
    empty.step_s[:] = np.nan
    heat = heat_map(empty)
    assert heat.cells.shape == (16, 0)
    assert heat.steps == ()
    assert text_rows(heat)[0].endswith("||")
