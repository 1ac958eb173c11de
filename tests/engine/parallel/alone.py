"""Groups and meshes without processes: for arithmetic on layouts, and for ranks that are alone."""

import torch

from engine.comm.collectives import Group
from engine.comm.mesh import Mesh
from engine.device import CpuDevice
from engine.events.writer import EventWriter
from engine.model.transformer import Chunk, MicroBatch
from engine.parallel.apply import ParallelChunk, Placement, parallelize
from engine.parallel.tensor import TensorAxis
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec

SEED = 3
CPU = CpuDevice.torch_device


def mesh_of(layout: ParallelLayout, rank: int = 0) -> Mesh:
    """The mesh of a rank with groups that cannot communicate."""

    def group(name: str, ranks: tuple[int, ...]) -> Group:
        return Group(name, ranks, ranks.index(rank), None)

    pp, dp = layout.group("pp", rank), layout.group("dp", rank)
    ends = (pp[0], pp[-1]) if layout.pp > 1 and rank in (pp[0], pp[-1]) else (rank,)
    return Mesh(
        rank=rank, layout=layout, world=group("world", tuple(range(layout.world_size))),
        tp=group("tp", layout.group("tp", rank)), pp_forward=group("pp_forward", pp),
        pp_backward=group("pp_backward", pp), pp_forward_wrap=group("pp_forward_wrap", pp),
        pp_backward_wrap=group("pp_backward_wrap", pp), dp_gather=group("dp_gather", dp),
        dp_reduce=group("dp_reduce", dp), tied=group("tied", ends),
    )  # fmt: skip


def axis_of(index: int = 0, size: int = 1, *, sequence_parallel: bool = True) -> TensorAxis:
    """A tensor-parallel axis; of size 1 it computes, of more it only knows its part."""
    group = Group("tp", tuple(range(size)), index, None)
    return TensorAxis(group, sequence_parallel=sequence_parallel, events=EventWriter(None, 0))


def chunk_of(
    spec: ModelSpec,
    *,
    axis: TensorAxis | None = None,
    dp: int = 1,
    dtype: torch.dtype = torch.float64,
    share_tied: bool = False,
) -> ParallelChunk:
    """The whole model as one parallel chunk."""
    place = Placement(dtype=dtype, device=CPU, dp=dp, seed=SEED, share_tied=share_tied)
    return parallelize(spec, range(spec.layers), (True, True), axis or axis_of(), place)


def batch(spec: ModelSpec, size: int = 2, step: int = 0) -> MicroBatch:
    """Random tokens."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(spec.vocab, (spec.seq + 1, size), generator=generator)
    return MicroBatch(tokens[:-1], tokens[1:], torch.arange(size), step)


def plain_gradients(model: Chunk) -> dict[str, torch.Tensor]:
    """Public name -> gradient of a plain model after its backward."""
    from engine.model.parameter import info_of

    return {info_of(p).name: p.grad for p in model.parameters() if p.grad is not None}
