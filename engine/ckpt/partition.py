"""How a layout cuts the state: which rank gets which box and range, for work without a trainer.

The dim that tensor parallelism splits follows from a parameter's public name. Any cut loads under
any layout; this one gives each rank what it will read at start-up, so that a reshard saves work
later.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from engine.ckpt.geometry import Box, Region, extents
from engine.ckpt.manifest import Manifest
from engine.ckpt.safefile import Planned
from engine.errors import LayoutError
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec

_SPLIT_0 = re.compile(r"(?:embed|head)\.weight|.*\.(?:q|k|v|up|gate)\.(?:weight|bias)")
_SPLIT_1 = re.compile(r".*\.(?:o|down)\.weight")
_LAYER = re.compile(r"layers\.(\d+)\.")


def split_dim(name: str) -> int | None:
    """The dim that tensor parallelism divides, None for a tensor that every rank holds whole."""
    if _SPLIT_0.fullmatch(name):
        return 0
    return 1 if _SPLIT_1.fullmatch(name) else None


def shape_of(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """The global shape of a parameter by its public name."""
    *above, last = name.split(".")
    sizes = {
        "q": (spec.q_size, spec.hidden), "k": (spec.kv_size, spec.hidden),
        "v": (spec.kv_size, spec.hidden), "o": (spec.hidden, spec.q_size),
        "up": (spec.ffn, spec.hidden), "gate": (spec.ffn, spec.hidden),
        "down": (spec.hidden, spec.ffn), "norm": (spec.hidden,), "final_norm": (spec.hidden,),
        "embed": (spec.vocab, spec.hidden), "head": (spec.vocab, spec.hidden),
        "position": (spec.seq, spec.hidden),
    }  # fmt: skip
    full = sizes[above[-1]]
    return full if last == "weight" else full[:1]


def layer_of(name: str) -> int | None:
    """The block a parameter belongs to, None outside blocks."""
    match = _LAYER.match(name)
    return int(match[1]) if match else None


def box_of(name: str, shape: tuple[int, ...], layout: ParallelLayout, index: int) -> Box:
    """The box that one tensor-parallel index holds."""
    box = [(0, size) for size in shape]
    dim = split_dim(name)
    if dim is not None and layout.tp > 1:
        if shape[dim] % layout.tp:
            raise LayoutError(
                f"layout.tp = {layout.tp} does not divide dim {dim} of {name}, {shape[dim]}",
                remedy="choose a tp that divides heads, ffn and vocab",
            )
        each = shape[dim] // layout.tp
        box[dim] = (index * each, (index + 1) * each)
    return tuple(box)


def stage_of(name: str, layers: int, layout: ParallelLayout) -> int:
    """The stage that owns a parameter: embeddings the first, final norm and head the last."""
    layer = layer_of(name)
    if layer is None:
        return layout.pp - 1 if name.startswith(("head.", "final_norm.")) else 0
    return layer // len(layout.layers_of(0, layers)) % layout.pp


def rank_pieces(manifest: Manifest, layout: ParallelLayout) -> Iterator[tuple[int, list[Planned]]]:
    """The pieces of each rank: its boxes laid end to end, cut evenly over the replicas."""
    layers = 1 + max((layer_of(name) or 0 for name in manifest.tensors), default=0)
    by_stage: dict[int, list[str]] = {}
    for name in manifest.tensors:
        by_stage.setdefault(stage_of(name, layers, layout), []).append(name)
    cells: dict[tuple[int, int], _Cell] = {}
    for rank in range(layout.world_size):
        at = layout.coord(rank)
        if (at.pp, at.tp) not in cells:
            cells[at.pp, at.tp] = _cell(manifest, layout, by_stage.get(at.pp, []), at.tp)
        cell = cells[at.pp, at.tp]
        total = cell.starts[-1]
        lo, hi = total * at.dp // layout.dp, total * (at.dp + 1) // layout.dp
        yield rank, list(_cut(manifest, cell, lo, hi))


class _Cell(NamedTuple):
    """What a (tp, pp) cell owns: name, box, range of it; where each begins end to end."""

    held: list[tuple[str, Box, int, int]]
    starts: list[int]


def _cell(manifest: Manifest, layout: ParallelLayout, names: list[str], index: int) -> _Cell:
    held, starts = [], [0]
    for name in names:
        shape = manifest.tensors[name].shape
        box = box_of(name, shape, layout, index)
        lo, hi = 0, prod(extents(box))
        if split_dim(name) is None:
            # Every tp rank has the whole tensor; each owns a part of it, so none is stored twice.
            lo, hi = hi * index // layout.tp, hi * (index + 1) // layout.tp
        held.append((name, box, lo, hi))
        starts.append(starts[-1] + hi - lo)
    return _Cell(held, starts)


def _cut(manifest: Manifest, cell: _Cell, lo: int, hi: int) -> Iterator[Planned]:
    first = max(0, bisect_right(cell.starts, lo) - 1)
    for (name, box, begin, end), start in zip(
        cell.held[first:], cell.starts[first:-1], strict=True
    ):
        if start >= hi:
            return
        a, b = begin + max(lo - start, 0), min(end, begin + hi - start)
        if b > a:
            entry = manifest.tensors[name]
            for slot, held in entry.slots.items():
                yield Planned(name, slot, held.dtype, Region(entry.shape, box, (a, b)))
