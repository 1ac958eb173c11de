"""Which elements of a tensor a piece holds, and what two pieces have in common.

A region is a range in the row-major flattening of a box of a tensor: tensor parallelism cuts boxes,
ZeRO cuts ranges. Every region is a set of contiguous runs of the whole tensor's row-major order, so
any two regions, saved under whatever layouts, meet in runs that are copied as they are.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Box = tuple[tuple[int, int], ...]
Ints = npt.NDArray[np.int64]


class Region(NamedTuple):
    """Elements [flat[0], flat[1]) of the row-major flattening of `box` in a tensor of `shape`."""

    shape: tuple[int, ...]
    box: Box
    flat: tuple[int, int]

    @property
    def size(self) -> int:
        """Elements held."""
        return self.flat[1] - self.flat[0]


class Overlap(NamedTuple):
    """Common runs of two regions: where each begins in either one, and its length, in elements."""

    have_at: Ints
    want_at: Ints
    length: Ints

    @property
    def size(self) -> int:
        """Elements in common."""
        return int(self.length.sum())


def whole(shape: Sequence[int]) -> Region:
    """The region that is the complete tensor."""
    shape = tuple(shape)
    return Region(shape, tuple((0, size) for size in shape), (0, prod(shape)))


def extents(box: Box) -> tuple[int, ...]:
    """Sizes of a box."""
    return tuple(hi - lo for lo, hi in box)


def fault(region: Region) -> str | None:
    """What is wrong with a region, or None; the gate for regions read from a file."""
    shape, box, (lo, hi) = region
    if len(box) != len(shape):
        return f"box has {len(box)} dims, tensor has {len(shape)}"
    if any(size < 0 for size in shape):
        return f"shape {list(shape)} has a negative size"
    if any(not 0 <= a <= b <= size for (a, b), size in zip(box, shape, strict=True)):
        return f"box {[list(side) for side in box]} leaves the shape {list(shape)}"
    if not 0 <= lo <= hi <= prod(extents(box)):
        return f"range [{lo}, {hi}) leaves a box of {prod(extents(box))} elements"
    return None


def runs(region: Region) -> tuple[Ints, Ints, Ints]:
    """Contiguous runs, ascending: (start in the tensor, start in the region, length), elements."""
    shape, box, (lo, hi) = region
    if hi <= lo:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    sizes, strides = extents(box), _strides(shape)
    span, outer = 1, len(shape)
    while outer > 0:
        outer -= 1
        span *= sizes[outer]
        if sizes[outer] != shape[outer]:
            break
    row = np.arange(lo // span, (hi - 1) // span + 1, dtype=np.int64)
    local = row * span - lo
    start = np.full(len(row), sum(box[d][0] * strides[d] for d in range(len(shape))), np.int64)
    for dim in reversed(range(outer)):
        start += row % sizes[dim] * strides[dim]
        row //= sizes[dim]
    length = np.full(len(row), span, np.int64)
    cut = -int(local[0])
    start[0] += cut
    local[0] += cut
    length[0] -= cut
    length[-1] -= int(local[-1] + length[-1]) - (hi - lo)
    return start, local, length


def overlap(have: Region, want: Region) -> Overlap:
    """The runs two regions of one tensor share, ascending."""
    if have.box == want.box:
        lo, hi = max(have.flat[0], want.flat[0]), min(have.flat[1], want.flat[1])
        if hi <= lo:
            return _NOTHING
        one = (lo - have.flat[0], lo - want.flat[0], hi - lo)
        return Overlap(*(np.array([value], np.int64) for value in one))
    pairs = zip(have.box, want.box, strict=True)
    if any(min(a[1], b[1]) <= max(a[0], b[0]) for a, b in pairs):
        return _NOTHING
    start_h, local_h, length_h = runs(have)
    start_w, local_w, length_w = runs(want)
    end_h, end_w = start_h + length_h, start_w + length_w
    first = np.searchsorted(end_h, start_w, side="right")
    meets = np.maximum(np.searchsorted(start_h, end_w, side="left") - first, 0)
    w = np.repeat(np.arange(len(start_w)), meets)
    h = np.arange(len(w)) - np.repeat(np.cumsum(meets) - meets, meets) + first[w]
    start = np.maximum(start_h[h], start_w[w])
    length = np.minimum(end_h[h], end_w[w]) - start
    return Overlap(start - start_h[h] + local_h[h], start - start_w[w] + local_w[w], length)


def coverage(shape: Sequence[int], regions: Sequence[Region]) -> str | None:
    """None if regions hold every element of a tensor exactly once, else the first fault."""
    by_box: dict[Box, list[tuple[int, int]]] = {}
    for region in regions:
        if region.size:
            by_box.setdefault(region.box, []).append(region.flat)
    for box, ranges in by_box.items():
        ranges.sort()
        for before, after in pairwise(ranges):
            if after[0] < before[1]:
                both = f"{after[0]} to {min(before[1], after[1])}"
                return f"elements {both} of box {_show(box)} are held twice"
    if _boxes_apart(list(by_box)):
        held = sum(region.size for region in regions)
        if held == prod(shape):
            return None
    return _first_gap(prod(shape), regions)


def _boxes_apart(boxes: list[Box]) -> bool:
    """Whether no two boxes meet; false if there are too many to compare pair by pair."""
    if len(boxes) < 2:
        return True
    if len(boxes) > 2048 or not boxes[0]:
        return False
    sides = np.array(boxes, np.int64)
    low = np.maximum(sides[:, None, :, 0], sides[None, :, :, 0])
    high = np.minimum(sides[:, None, :, 1], sides[None, :, :, 1])
    return int((low < high).all(-1).sum()) == len(boxes)


def _first_gap(total: int, regions: Sequence[Region]) -> str | None:
    parts = [runs(region) for region in regions if region.size]
    start = np.concatenate([p[0] for p in parts]) if parts else np.zeros(0, np.int64)
    length = np.concatenate([p[2] for p in parts]) if parts else np.zeros(0, np.int64)
    order = np.argsort(start, kind="stable")
    start = np.append(start[order], total)
    end = np.insert(np.maximum.accumulate(start[:-1] + length[order]), 0, 0)
    wrong = np.flatnonzero(start != end)
    if len(wrong) == 0:
        return None
    at = int(wrong[0])
    if start[at] > end[at]:
        return f"elements {int(end[at])} to {int(start[at])} are held by no shard"
    return f"elements {int(start[at])} to {int(end[at])} are held twice"


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return strides


def _show(box: Box) -> str:
    return "[" + ", ".join(f"{lo}:{hi}" for lo, hi in box) + "]"


_NOTHING = Overlap(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
