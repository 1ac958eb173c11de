"""How ranks are arranged: degrees of the axes, rank <-> coordinate, groups, layers of a chunk.

Ranks run tp fastest, then dp, then pp: tensor parallel groups stay inside a node and data parallel
groups inside a pod, as in the paper (2, 3.6).
"""

from typing import Annotated, Literal, NamedTuple

from engine.errors import LayoutError
from engine.spec.base import Count, Noun, doc

Axis = Literal["tp", "dp", "pp"]
AXES: tuple[Axis, ...] = ("tp", "dp", "pp")
"""From the fastest-running axis of a rank number to the slowest."""


class Coord(NamedTuple):
    """A rank's position on each axis."""

    tp: int
    dp: int
    pp: int


class ParallelLayout(Noun, frozen=True, kw_only=True):
    """Degrees of tensor, pipeline and data parallelism."""

    tp: Annotated[Count, doc("ranks that share every layer")] = 1
    pp: Annotated[Count, doc("pipeline stages")] = 1
    vpp: Annotated[Count, doc("model chunks per stage (interleaving); 1 = none")] = 1
    dp: Annotated[Count, doc("replicas")] = 1
    sequence_parallel: Annotated[
        bool, doc("split norms and dropout over tp along the sequence (needs tp > 1 to matter)")
    ] = True
    zero: Annotated[
        Literal[0, 1, 2], doc("0: nothing, 1: optimizer state, 2: also gradients sharded over dp")
    ] = 2

    @property
    def world_size(self) -> int:
        """Ranks in total."""
        return self.tp * self.pp * self.dp

    @property
    def chunks(self) -> int:
        """Model chunks in total, numbered in forward order."""
        return self.pp * self.vpp

    def degree(self, axis: Axis) -> int:
        """Ranks along an axis."""
        return {"tp": self.tp, "dp": self.dp, "pp": self.pp}[axis]

    def coord(self, rank: int) -> Coord:
        """Where a rank sits."""
        if not 0 <= rank < self.world_size:
            raise LayoutError(
                f"rank {rank} is outside a layout of {self.world_size} ranks",
                remedy=f"use a rank from 0 to {self.world_size - 1}",
            )
        return Coord(
            tp=rank % self.tp, dp=rank // self.tp % self.dp, pp=rank // (self.tp * self.dp)
        )

    def rank(self, coord: Coord) -> int:
        """The inverse of `coord`."""
        return coord.tp + self.tp * (coord.dp + self.dp * coord.pp)

    def group(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Ranks that differ from `rank` only along `axis`, in order of their index."""
        here = self.coord(rank)
        return tuple(
            self.rank(here._replace(**{axis: index})) for index in range(self.degree(axis))
        )

    def groups(self, axis: Axis) -> list[tuple[int, ...]]:
        """All groups along an axis; together they partition the ranks."""
        step = {"tp": 1, "dp": self.tp, "pp": self.tp * self.dp}[axis]
        firsts = [r for r in range(self.world_size) if getattr(self.coord(r), axis) == 0]
        return [tuple(r + step * index for index in range(self.degree(axis))) for r in firsts]

    def replica_of(self, rank: int) -> int:
        """Which data-parallel replica a rank belongs to."""
        return self.coord(rank).dp

    def layers_of(self, chunk: int, layers: int) -> range:
        """The transformer blocks that a chunk holds; `layers` must divide by `chunks`."""
        if layers % self.chunks:
            raise LayoutError(
                f"layout.pp * layout.vpp = {self.chunks} does not divide model.layers = {layers}",
                remedy="choose pp and vpp whose product divides the number of layers",
            )
        each = layers // self.chunks
        return range(chunk * each, (chunk + 1) * each)
