from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ckpt.geometry import Region, coverage, extents, fault, overlap, runs, whole


@st.composite
def regions(draw, shape):
    box = []
    for size in shape:
        lo = draw(st.integers(0, size))
        box.append((lo, draw(st.integers(lo, size))))
    count = prod(extents(tuple(box)))
    lo = draw(st.integers(0, count))
    return Region(shape, tuple(box), (lo, draw(st.integers(lo, count))))


@st.composite
def pairs(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    return draw(regions(shape)), draw(regions(shape))


def elements(region):
    """Dense oracle: global flat numbers of a region's elements, in its order."""
    numbers = np.arange(prod(region.shape)).reshape(region.shape)
    inside = numbers[tuple(slice(lo, hi) for lo, hi in region.box)].reshape(-1)
    return inside[region.flat[0] : region.flat[1]]


@given(pairs())
def test_runs_enumerate_the_dense_elements_in_order(pair):
    region = pair[0]
    start, local, length = runs(region)
    flat = [np.arange(s, s + n) for s, n in zip(start, length, strict=True)]
    assert np.array_equal(np.concatenate([*flat, np.zeros(0, int)]), elements(region))
    assert np.array_equal(local, np.cumsum(length) - length)


@given(pairs())
def test_overlap_is_the_dense_intersection(pair):
    have, want = pair
    a, b = elements(have), elements(want)
    common = overlap(have, want)
    out = np.full(len(b), -1)
    for h, w, n in zip(common.have_at, common.want_at, common.length, strict=True):
        out[w : w + n] = a[h : h + n]
    assert np.array_equal(out, np.where(np.isin(b, a), b, -1))
    assert common.size == len(np.intersect1d(a, b))


@given(pairs())
def test_coverage_agrees_with_counting_elements(pair):
    counts = np.zeros(prod(pair[0].shape), int)
    for region in pair:
        np.add.at(counts, elements(region), 1)
    assert (coverage(pair[0].shape, pair) is None) == bool((counts == 1).all())


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_tensor_and_range_cuts_cover(rows, columns, parts):
    shape = (rows, columns * parts)
    cut = []
    for t in range(parts):
        box = ((0, rows), (t * columns, (t + 1) * columns))
        middle = rows * columns // 2
        cut += [Region(shape, box, (0, middle)), Region(shape, box, (middle, rows * columns))]
    assert coverage(shape, cut) is None
    assert "no shard" in coverage(shape, cut[:-1] if cut[-1].size else cut[:-2])
    assert "twice" in coverage(shape, [*cut, cut[-1]])


def test_a_contiguous_cut_is_one_run():
    start, _, length = runs(Region((96, 512), ((24, 48), (0, 512)), (100, 5000)))
    assert (start.tolist(), length.tolist()) == ([24 * 512 + 100], [4900])


@pytest.mark.parametrize(
    ("region", "says"),
    [
        (Region((4,), (), (0, 1)), "0 dims"),
        (Region((4,), ((0, 5),), (0, 1)), "leaves the shape"),
        (Region((4,), ((3, 2),), (0, 0)), "leaves the shape"),
        (Region((4,), ((0, 4),), (0, 5)), "leaves a box"),
        (Region((-1,), ((0, 0),), (0, 0)), "negative"),
    ],
)
def test_fault_names_what_is_wrong(region, says):
    assert says in fault(region)
    assert fault(whole((3, 4))) is None
