"""Run every twin beside its plain module, on any number of tensor-parallel ranks, in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.comm.collectives import all_reduce
from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.events.writer import EventWriter
from engine.model.parameter import info_of
from engine.model.transformer import Chunk, whole_model
from engine.parallel.chunked import Chunker
from engine.parallel.tensor import TensorAxis
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from tests.engine.parallel.alone import SEED, batch, chunk_of

SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": {
        "norm": "rmsnorm", "activation": "swiglu", "position": "rotary", "bias": False,
        "tied": False, "kv_heads": 2,
    },
    "gpt-parallel": {"block": "parallel"},
    "llama-parallel": {
        "block": "parallel", "norm": "rmsnorm", "activation": "swiglu", "position": "rotary",
        "tied": False,
    },
}  # fmt: skip


class Pair(NamedTuple):
    """The plain model and the parallel one, with the same numbers in them."""

    plain: Chunk
    twin: Chunk
    axis: TensorAxis
    spec: ModelSpec


def spec_of(shape: str) -> ModelSpec:
    return ModelSpec(layers=2, hidden=16, heads=4, vocab=32, seq=8, ffn=24, **SHAPES[shape])


def numbers(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


def errors(shape: str, axis: TensorAxis) -> dict[str, float]:
    """Largest difference of outputs, input gradients and weight gradients, by module."""
    spec = spec_of(shape)
    plain = whole_model(spec, seed=SEED, dtype=torch.float64)
    made = chunk_of(spec, axis=axis)
    pair = Pair(plain, made.module, axis, spec)
    found: dict[str, float] = {}
    for name, module in plain.named_modules():
        run = RUNS.get(type(module).__name__)
        if run is not None:
            found[name] = run(pair, module, pair.twin.get_submodule(name))
    if axis.split_sequence:
        start, stop = made.flat.replicated()
        all_reduce(made.flat.grad[start:stop], axis.group).wait()
    gradients = {info_of(p).name: p.grad for p in plain.parameters()}
    for weight in made.flat.weights:
        whole = gradients[weight.info.name]
        assert whole is not None
        part = whole[tuple(slice(a, b) for a, b in weight.box)]
        found[f"gradient of {weight.info.name}"] = difference(weight.grad, part)
    return found


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
    return float((a - b).detach().abs().max())


def _norm(pair: Pair, plain: nn.Module, twin: nn.Module) -> float:
    """Alone, then with what the sublayer before adds; the stream goes on to others, too."""
    x, d, g, h = (numbers(pair.spec.seq, 2, pair.spec.hidden, seed=i) for i in (1, 2, 3, 4))
    part = slice(*pair.axis.local_sequence(pair.spec.seq))
    worst = 0.0
    for with_delta in (False, True):
        ours = [t[part].clone().requires_grad_() for t in ((x, d) if with_delta else (x,))]
        theirs = [t.clone().requires_grad_() for t in ((x, d) if with_delta else (x,))]
        (y, s), (z, t) = plain(*theirs), twin(*ours)
        torch.autograd.backward((y, s), (g, h))
        torch.autograd.backward((z, t), (g[part], h[part]))
        grads = [difference(a.grad[part], b.grad) for a, b in zip(theirs, ours, strict=True)]
        worst = max(worst, difference(y[part], z), difference(s[part], t), *grads)
    return worst


def _into(pair: Pair, plain: nn.Module, twin: nn.Module) -> float:
    x = numbers(pair.spec.seq, 2, pair.spec.hidden)
    part = slice(*pair.axis.local_sequence(pair.spec.seq))
    a, b = x.clone().requires_grad_(), x[part].clone().requires_grad_()
    ys, zs = plain(a), twin(b)
    gs = [numbers(*y.shape, seed=i) for i, y in enumerate(ys)]
    mine = [_columns(g, pair.axis) for g in gs]
    torch.autograd.backward(ys, gs)
    torch.autograd.backward(zs, mine)
    outputs = [difference(_columns(y, pair.axis), z) for y, z in zip(ys, zs, strict=True)]
    return max(*outputs, difference(a.grad[part], b.grad))


def _out(pair: Pair, plain: nn.Module, twin: nn.Module) -> float:
    sizes = [getattr(plain, name).weight.shape[1] for name in plain.names]
    xs = [numbers(pair.spec.seq, 2, n, seed=i).requires_grad_() for i, n in enumerate(sizes)]
    parts = [_columns(x, pair.axis).detach().clone().requires_grad_() for x in xs]
    part = slice(*pair.axis.local_sequence(pair.spec.seq))
    y, z = plain(xs), twin(parts)
    g = numbers(*y.shape, seed=9)
    y.backward(g)
    z.backward(g[part])
    inputs = [
        difference(_columns(x.grad, pair.axis), p.grad) for x, p in zip(xs, parts, strict=True)
    ]
    return max(*inputs, difference(y[part], z))


def _embedding(pair: Pair, plain: nn.Module, twin: nn.Module) -> float:
    micro = batch(pair.spec)
    part = slice(*pair.axis.local_sequence(pair.spec.seq))
    y, z = plain(micro), twin(micro)
    g = numbers(*y.shape, seed=3)
    y.backward(g)
    z.backward(g[part])
    return difference(y[part], z)


def _head(pair: Pair, plain: nn.Module, twin: nn.Module) -> float:
    micro = batch(pair.spec)
    x = numbers(pair.spec.seq, 2, pair.spec.hidden, seed=4) * 30  # logits of very unequal size
    part = slice(*pair.axis.local_sequence(pair.spec.seq))
    a, b = x.clone().requires_grad_(), x[part].clone().requires_grad_()
    y, z = plain(a - 1, torch.ones_like(a), micro), twin(b - 1, torch.ones_like(b), micro)
    (y / 7).backward()
    (z / 7).backward()
    return max(difference(y, z) / float(y.detach()), difference(a.grad[part], b.grad))


def _columns(x: Tensor, axis: TensorAxis) -> Tensor:
    """This rank's part of the last dimension."""
    return x.chunk(axis.size, -1)[axis.index]


RUNS: dict[str, Callable[[Pair, nn.Module, nn.Module], float]] = {
    "Norm": _norm, "Into": _into, "Out": _out, "Embedding": _embedding, "Head": _head,
}  # fmt: skip
"""By the plain module's class; blocks and cores are made of these."""


def on_ranks(rank: int, meet: Rendezvous, args: dict[str, Any]) -> dict[str, float]:
    """What a rank of a tensor-parallel group finds: the worst error of each shape."""
    layout = ParallelLayout(tp=args["tp"], sequence_parallel=args["sequence_parallel"])
    start_world(rank, layout.world_size, meet, backend="gloo", timeout_s=60)
    mesh = build_mesh(layout, rank, backend="gloo", timeout_s=60)
    events = EventWriter(None, rank)
    pieces = args.get("pieces", 1)
    chunker = Chunker(mesh.tp, pieces=pieces, ahead=True, events=events) if pieces > 1 else None
    axis = TensorAxis(
        mesh.tp, sequence_parallel=layout.sequence_parallel, events=events, chunker=chunker
    )
    worst = {}
    for shape in SHAPES:
        found = errors(shape, axis)
        name = max(found, key=lambda key: found[key])
        worst[f"{shape}: {name}"] = found[name]
    end_world()
    return worst
