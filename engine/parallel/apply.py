"""Put a layout onto a model chunk: one readable table of which module becomes what.

The order matters: parameters are laid out in flat buffers first (zero.py shards those), then each
module is replaced by its twin that computes on views of them. The model itself stays innocent of
all this.

| module    | twin              | what the twin adds                                              |
| --------- | ----------------- | --------------------------------------------------------------- |
| Embedding | ParallelEmbedding | rows of the vocabulary; sum over tp                             |
| Norm      | ParallelNorm      | gradients straight into the flat buffer                         |
| Into      | ParallelInto      | column split; gathers the sequence; one GEMM for all projections|
| Out       | ParallelOut       | row split; one reduction for all projections                    |
| Dropout   | (itself)          | told which part of the sequence it sees                         |
| MlpCore   | ParallelMlp       | native kernels where they were chosen                           |
| Head      | ParallelHead      | columns of the vocabulary; loss without gathering logits        |
"""

from typing import NamedTuple

import torch
from torch import nn

from engine.model.transformer import (
    AttentionCore,
    Chunk,
    Dropout,
    Embedding,
    Head,
    Into,
    MlpCore,
    Norm,
    Out,
    set_seed,
)
from engine.ops.native import Kernels
from engine.ops.norm import NormOp
from engine.parallel.flat import FlatChunk, Weight, weights_of
from engine.parallel.halves import Halves
from engine.parallel.tensor import ParallelInto, ParallelMlp, ParallelNorm, ParallelOut, TensorAxis
from engine.parallel.vocab import ParallelEmbedding, ParallelHead
from engine.spec.model import ModelSpec


class Placement(NamedTuple):
    """Where and how a chunk is made."""

    dtype: torch.dtype
    device: torch.device
    dp: int
    seed: int
    share_tied: bool
    """Put a tied vocabulary matrix into a buffer of its own (two chunks use it)."""
    tied: FlatChunk | None = None
    """That buffer, if a chunk on this rank has made it already."""
    kernels: Kernels | None = None
    """Native operators, if they were chosen."""
    halves_ahead: bool | None = None
    """Compute micro-batches in two halves, of which one hides the other's sums or (False) waits;
    None: in one piece."""


class ParallelChunk(NamedTuple):
    """A chunk ready to run, with the buffers behind it."""

    module: Chunk
    flat: FlatChunk
    tied: FlatChunk | None


def parallelize(
    spec: ModelSpec, layers: range, ends: tuple[bool, bool], axis: TensorAxis, place: Placement
) -> ParallelChunk:
    """Build a chunk of the model under a layout, with initial values.

    ends says whether the chunk is the first and whether it is the last of the model.
    """
    first, last = ends
    with torch.device("meta"):
        chunk = Chunk(spec, layers, first=first, last=last)
    weights = weights_of(chunk, tp_index=axis.index, tp=axis.size)
    own, shared = _partition(chunk, weights, place)
    flat = _buffer(own, spec, place)
    tied = None
    if shared and place.tied is not None:  # the other end of the model lives on this rank too
        weights[shared[0]] = place.tied.weights[0]
    elif shared:
        tied = _buffer([weights[shared[0]]], spec, place)
    _swap(chunk, weights, axis, place.kernels)
    if place.halves_ahead is not None:
        halves = Halves(chunk.layers, axis, ahead=place.halves_ahead)
        chunk.layers = nn.ModuleDict({"halves": halves})
    set_seed(chunk, place.seed)
    begin, _ = axis.local_sequence(spec.seq)
    for module in chunk.modules():
        if isinstance(module, Dropout):
            module.first = begin
        elif isinstance(module, AttentionCore):
            module.kernels = place.kernels
    return ParallelChunk(chunk, flat, tied)


def _buffer(weights: list[Weight], spec: ModelSpec, place: Placement) -> FlatChunk:
    """A flat buffer with initial values."""
    made = FlatChunk(weights, dp=place.dp, dtype=place.dtype, device=place.device)
    made.initialize(seed=place.seed, std=spec.init_std, layers=spec.layers)
    return made


def _partition(
    chunk: Chunk, weights: dict[int, Weight], place: Placement
) -> tuple[list[Weight], list[int]]:
    """Weights of the chunk itself, and the key of a tied matrix that must stay apart."""
    apart: set[int] = set()
    if place.share_tied:
        ends = [end for end in (chunk.embed, chunk.head) if end is not None]
        apart = {id(end.weight) for end in ends}
    own = [w for key, w in weights.items() if key not in apart]
    return own, list(apart)


def _swap(
    module: nn.Module, weights: dict[int, Weight], axis: TensorAxis, kernels: Kernels | None
) -> None:
    """Replace every known module below `module` by its twin."""
    for name, child in module.named_children():
        twin = _twin(child, weights, axis, kernels)
        if twin is None:
            _swap(child, weights, axis, kernels)
        else:
            setattr(module, name, twin)


def _twin(
    module: nn.Module, weights: dict[int, Weight], axis: TensorAxis, kernels: Kernels | None
) -> nn.Module | None:
    def find(tensor: nn.Parameter | None) -> Weight | None:
        return None if tensor is None else weights[id(tensor)]

    if isinstance(module, Norm):
        op = NormOp(module.kind, module.eps, kernels)
        return ParallelNorm(op, weights[id(module.weight)], find(module.bias))
    if isinstance(module, MlpCore):
        return ParallelMlp(kernels)
    if isinstance(module, Into | Out):
        parts = [getattr(module, part) for part in module.names]
        matrices = [weights[id(part.weight)] for part in parts]
        vectors = [weights[id(part.bias)] for part in parts if part.bias is not None]
        kind = ParallelInto if isinstance(module, Into) else ParallelOut
        return kind(matrices, vectors, axis)
    if isinstance(module, Embedding):
        weight, position = weights[id(module.weight)], find(module.position)
        return ParallelEmbedding(weight, position, module.drop, axis)
    if isinstance(module, Head):
        norm = _twin(module.norm, weights, axis, kernels)
        assert isinstance(norm, ParallelNorm), "the head's norm has a twin"
        return ParallelHead(norm, weights[id(module.weight)], axis, kernels)
    return None
