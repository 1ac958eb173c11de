"""What is priced: a job (model, cluster, batch, system) and the layouts it could have.

A `PlanLayout` is one candidate; a `Grid` is many of them as arrays, so that one set of formulas
prices one layout or a million. Planned layouts know axes that the engine's own `ParallelLayout`
does not run (context and expert parallelism, ZeRO-3), because published runs use them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from engine.plan.profiles import Physics, SystemProfile
from engine.spec.base import Count, Noun, Positive, Size, doc
from engine.spec.cluster import ClusterSpec
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec

Num: TypeAlias = Any
"""A number or an array of numbers; formulas do not care which."""

SCORES_IN_MEMORY = ("eager", "unfused", "fused-softmax")
"""Kinds of attention that write the scores of a head out."""

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
PlanSchedule = Literal["auto", "gpipe", "zero-bubble"]
SCHEDULES: tuple[PlanSchedule, ...] = ("auto", "gpipe", "zero-bubble")
"""auto: 1F1B, interleaved if vpp > 1."""
ZERO_BUBBLE = SCHEDULES.index("zero-bubble")
GPIPE = SCHEDULES.index("gpipe")
Attention = Literal["eager", "unfused", "fused-softmax", "flash1", "triton", "flash2", "cudnn"]


class Experts(Noun, frozen=True, kw_only=True):
    """The mixture-of-experts part of a model: what replaces the MLP in its sparse layers."""

    count: Annotated[Count, doc("routed experts of a layer")]
    top_k: Annotated[Count, doc("routed experts a token visits")]
    ffn: Annotated[Count, doc("width of one routed expert")]
    shared_ffn: Annotated[Size, doc("total width of the experts every token visits")] = 0
    dense_layers: Annotated[Size, doc("first layers that keep a plain MLP")] = 0


class PlanLayout(Noun, frozen=True, kw_only=True):
    """One way to split a job over the cluster."""

    tp: Annotated[Count, doc("ranks that share every layer")] = 1
    pp: Annotated[Count, doc("pipeline stages")] = 1
    vpp: Annotated[Count, doc("model chunks per stage")] = 1
    dp: Annotated[Count, doc("replicas")] = 1
    cp: Annotated[Count, doc("ranks that share a sequence")] = 1
    ep: Annotated[Count, doc("ranks over which routed experts are spread, part of dp")] = 1
    sequence_parallel: Annotated[bool, doc("split norms and dropout over tp")] = True
    zero: Annotated[Literal[0, 1, 2, 3], doc("what is sharded over dp")] = 2
    shard: Annotated[Size, doc("ranks over which ZeRO shards; 0 = all of dp")] = 0
    micro_batch: Annotated[Count, doc("sequences per forward pass")] = 1
    recompute: Annotated[Recompute, doc("activations computed again in backward")] = "none"
    schedule: Annotated[PlanSchedule, doc("order of the pipeline; auto: (interleaved) 1F1B")] = (
        "auto"
    )

    @property
    def world_size(self) -> int:
        """Ranks in total."""
        return self.tp * self.pp * self.dp * self.cp

    def parallel(self) -> ParallelLayout | None:
        """As the engine's own layout; None where the engine has no such axis."""
        if self.cp > 1 or self.ep > 1 or self.zero == 3:
            return None
        return ParallelLayout(
            tp=self.tp, pp=self.pp, vpp=self.vpp, dp=self.dp,
            sequence_parallel=self.sequence_parallel, zero=self.zero,
        )  # fmt: skip


class Grid(NamedTuple):
    """Layouts as arrays (or single numbers); same names as `PlanLayout`, words as their index."""

    tp: Num
    pp: Num
    vpp: Num
    dp: Num
    cp: Num
    ep: Num
    sequence_parallel: Num
    zero: Num
    shard: Num
    micro_batch: Num
    recompute: Num
    schedule: Num = 0.0

    def take(self, index: Num) -> "Grid":
        """The layouts at some positions."""
        return Grid(*(column[index] for column in self))

    def layout(self, index: int) -> PlanLayout:
        """One of them as a noun."""
        row = {name: int(column[index]) for name, column in zip(self._fields, self, strict=True)}
        kind = RECOMPUTE[row.pop("recompute")]
        order = SCHEDULES[row.pop("schedule")]
        split = bool(row.pop("sequence_parallel"))
        return PlanLayout(
            **row, recompute=kind, schedule=order, sequence_parallel=split,  # type: ignore[arg-type]
        )  # fmt: skip


def grid_of(layouts: Sequence[PlanLayout]) -> Grid:
    """Nouns as arrays."""
    return Grid(
        *(
            np.array([_number(getattr(layout, name)) for layout in layouts], dtype=np.float64)
            for name in Grid._fields
        )
    )


def single(layout: PlanLayout) -> Grid:
    """One noun as plain numbers."""
    return Grid(*(_number(getattr(layout, name)) for name in Grid._fields))


def _number(value: int | bool | str) -> float:
    if isinstance(value, str):
        words: tuple[str, ...] = RECOMPUTE if value in RECOMPUTE else SCHEDULES
        return float(words.index(value))
    return float(value)


class Job(Noun, frozen=True, kw_only=True):
    """Everything about a run but its layout."""

    model: ModelSpec
    cluster: ClusterSpec
    global_batch: Annotated[Count, doc("sequences per optimizer step")]
    experts: Experts | None = None
    precision: Annotated[str, doc("of GEMMs: bf16, fp16, fp8, fp4, fp32, fp64")] = "bf16"
    attention: Annotated[Attention, doc("kernel")] = "flash2"
    profile: SystemProfile
    physics: Physics
    speed: Annotated[Positive, doc("GEMM speed of this device and precision / data sheet")] = 1.0

    @property
    def peak_flops_per_s(self) -> float:
        """What MFU divides by, per device; formats without a data-sheet peak fall back to bf16."""
        peaks = self.cluster.device.peak_flops_per_s
        return peaks.get(self.precision.split("-")[0]) or peaks.get("bf16") or max(peaks.values())

    @property
    def element_bytes(self) -> float:
        """Of an activation or a parameter on the wire: GEMMs in 8 bits still exchange 16."""
        return {"fp64": 8.0, "fp32": 4.0}.get(self.precision, 2.0)

    @property
    def recomputes(self) -> tuple[Recompute, ...]:
        """Kinds of recomputation that trade anything here.

        Dropping only the attention core saves nothing where a flash kernel keeps no scores.
        """
        if self.profile.per_op_recompute or self.attention in SCORES_IN_MEMORY:
            return RECOMPUTE
        return ("none", "full")

    @property
    def chooses_by_operation(self) -> bool:
        """Whether selective recomputation repeats operations of all kinds, not the attention core.

        torchtitan's does; where scores are kept in memory, dropping them comes first.
        """
        return self.profile.per_op_recompute and self.attention not in SCORES_IN_MEMORY

    def microbatches(self, grid: Grid) -> Num:
        """Forward passes of one replica in a step, padded up where the batch does not divide."""
        return np.maximum(1.0, np.ceil(self.global_batch / (grid.dp * grid.micro_batch)))
