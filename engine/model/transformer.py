"""The transformer, once: GPT or Llama, serial or parallel block, full or windowed attention.

A block is a list of sublayers, and a sublayer is norm -> `into` (projections that share one input)
-> cores -> `out` (projections summed into the stream). The serial block has two (attention, then
MLP), the parallel block one that holds both cores (paper 3.1, Figure 3a): y = x + MLP(norm(x)) +
Attn(norm(x)). `into` and `out` are the only places where a layout must act;
engine/parallel/apply.py swaps them.

Shapes: s sequence, b micro-batch, h hidden, n heads, g key/value heads, d head size, v vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.model.parameter import Init, info_of, initialize, name_parameters, parameter
from engine.ops import random
from engine.ops.attention import attention
from engine.ops.native import Kernels
from engine.ops.rotary import rotary_tables, rotate
from engine.spec.model import ModelSpec
from engine.spec.recipe import Recompute


class MicroBatch(NamedTuple):
    """What one forward pass works on."""

    tokens_sb: Tensor
    targets_sb: Tensor
    sample_b: Tensor
    """Global sample numbers, for counted dropout."""
    step: int


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the hidden dimension."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind, self.eps = spec.norm, spec.norm_eps
        self.weight = parameter((spec.hidden,), split=None, init="ones")
        has_bias = spec.norm == "layernorm" and spec.bias
        self.bias = parameter((spec.hidden,), split=None, init="zeros") if has_bias else None

    def forward(self, x_sbh: Tensor, delta_sbh: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(normalised, s): s is the stream x with what the sublayer before adds to it."""
        s = x_sbh if delta_sbh is None else x_sbh + delta_sbh
        if self.kind == "rmsnorm":
            return F.rms_norm(s, self.weight.shape, self.weight, self.eps), s
        return F.layer_norm(s, self.weight.shape, self.weight, self.bias, self.eps), s


class Projection(nn.Module):
    """Weight [out, in] and optional bias [out] of one linear map; applied by `Into` or `Out`."""

    def __init__(self, size: tuple[int, int], *, split: int, init: Init, bias: bool) -> None:
        super().__init__()
        self.weight = parameter(size, split=split, init=init)
        split_bias = 0 if split == 0 else None
        self.bias = parameter((size[0],), split=split_bias, init="zeros") if bias else None


class Into(nn.Module):
    """Several projections of one input, e.g. q, k and v."""

    def __init__(self, hidden: int, sizes: dict[str, int], *, bias: bool) -> None:
        super().__init__()
        self.names = tuple(sizes)
        for name, size in sizes.items():
            made = Projection((size, hidden), split=0, init="normal", bias=bias)
            self.add_module(name, made)

    def forward(self, x_sbh: Tensor) -> list[Tensor]:
        """One output per projection, in order."""
        parts = (getattr(self, name) for name in self.names)
        return [F.linear(x_sbh, part.weight, part.bias) for part in parts]


class Out(nn.Module):
    """Several projections whose results are summed, e.g. the attention's and the MLP's."""

    def __init__(self, hidden: int, sizes: dict[str, int], *, bias: bool) -> None:
        super().__init__()
        self.names = tuple(sizes)
        for name, size in sizes.items():
            made = Projection((hidden, size), split=1, init="scaled", bias=bias)
            self.add_module(name, made)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """The sum over all projections, [s, b, h]."""
        parts = [getattr(self, name) for name in self.names]
        first, *rest = [F.linear(x, p.weight, p.bias) for p, x in zip(parts, inputs, strict=True)]
        for other in rest:
            first = first + other
        return first


class AttentionCore(nn.Module):
    """Heads, positions and the mix of values; q, k, v in, [s, b, n * d] out."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.head_dim, self.window = spec.head_dim, spec.window_of(layer)
        self.theta = spec.rope_theta if spec.position == "rotary" else 0.0
        self._tables: tuple[Tensor, Tensor] | None = None
        self.kernels: Kernels | None = None
        """Native operators, if they were chosen."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend over the whole sequence; works on any number of heads."""
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in (q, k, v))
        if self.theta:
            cos, sin = self._rotation(q)
            q, k = (rotate(x, cos, sin, kernels=self.kernels) for x in (q, k))
        return attention(q, k, v, window=self.window)

    def _rotation(self, q: Tensor) -> tuple[Tensor, Tensor]:
        cached = self._tables
        if cached is None or _kind(cached[0]) != _kind(q):
            cached = self._tables = rotary_tables(q.shape[0], self.head_dim, self.theta, q)
        return cached


def _kind(x: Tensor) -> tuple[int, torch.dtype, torch.device]:
    """What a rotation table must share with its input: length, precision, place."""
    return x.shape[0], x.dtype, x.device


class MlpCore(nn.Module):
    """The non-linearity between the MLP's projections."""

    def forward(self, up: Tensor, gate: Tensor | None = None) -> Tensor:
        """GeLU (tanh form) of `up`, or SwiGLU with a gate."""
        if gate is None:
            return F.gelu(up, approximate="tanh")
        return F.silu(gate) * up


class Dropout(nn.Module):
    """Counted dropout: the mask depends on sample, step, site and position only."""

    def __init__(self, rate: float, site: str) -> None:
        super().__init__()
        self.rate, self.site, self.seed = rate, site, 0
        self.first = 0
        """Position of the first token held, when the sequence is split over ranks."""

    def forward(self, x_sbh: Tensor, micro: MicroBatch) -> Tensor:
        """Zero each element with probability `rate` and scale the rest; identity in evaluation."""
        if self.rate == 0.0 or not self.training:
            return x_sbh
        if self.rate >= 1.0:
            return x_sbh * 0.0
        s, _, h = x_sbh.shape
        site_key = random.key_of(self.seed, "dropout", self.site, micro.step)
        key_b = random.bits(site_key, micro.sample_b)[None, :, None]
        position = torch.arange(self.first, self.first + s, device=x_sbh.device) * h
        index = position[:, None, None] + torch.arange(h, device=x_sbh.device)
        keep = random.uniform(key_b, index) >= self.rate
        return x_sbh * keep.to(x_sbh.dtype) / (1.0 - self.rate)


class Sublayer(nn.Module):
    """norm -> into -> cores -> out -> dropout: what is to be added to the stream.

    The addition is left to the norm that comes next, which can do it on the way.
    """

    def __init__(self, spec: ModelSpec, layer: int, cores: tuple[str, ...]) -> None:
        super().__init__()
        into: dict[str, int] = {}
        out: dict[str, int] = {}
        self.norm = Norm(spec)
        self.attn = self.mlp = None
        if "attn" in cores:
            into |= {"q": spec.q_size, "k": spec.kv_size, "v": spec.kv_size}
            out |= {"o": spec.q_size}
            self.attn = AttentionCore(spec, layer)
        if "mlp" in cores:
            into |= {"up": spec.ffn} | ({"gate": spec.ffn} if spec.activation == "swiglu" else {})
            out |= {"down": spec.ffn}
            self.mlp = MlpCore()
        self.into = Into(spec.hidden, into, bias=spec.bias)
        self.out = Out(spec.hidden, out, bias=spec.bias)
        self.drop = Dropout(spec.dropout, f"{layer}.{'+'.join(cores)}")
        self.recompute = False
        """Keep the inputs of the cores only, and run them again in the backward."""

    def _run(self, core: nn.Module, *parts: Tensor) -> Tensor:
        return again(core, *parts) if self.recompute else core(*parts)

    def forward(
        self, x_sbh: Tensor, delta_sbh: Tensor | None, micro: MicroBatch
    ) -> tuple[Tensor, Tensor]:
        """(s, out(cores(into(norm(s))))) of the stream s = x + delta."""
        normed, stream = self.norm(x_sbh, delta_sbh)
        return stream, self.drop(self.out(self.mix(self.into(normed))), micro)

    def mix(self, parts: list[Tensor]) -> list[Tensor]:
        """What the cores make of the projections of their input."""
        mixed = []
        if self.attn is not None:
            mixed.append(self._run(self.attn, *parts[:3]))
            parts = parts[3:]
        if self.mlp is not None:
            mixed.append(self._run(self.mlp, *parts))
        return mixed


class Block(nn.Module):
    """One transformer layer: the serial form has two sublayers, the parallel form one."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        if spec.block == "parallel":
            self.both = Sublayer(spec, layer, ("attn", "mlp"))
        else:
            self.attn = Sublayer(spec, layer, ("attn",))
            self.mlp = Sublayer(spec, layer, ("mlp",))
        self.recompute = False
        """Keep the block's input only, and run it again in the backward."""

    def forward(
        self, x_sbh: Tensor, delta_sbh: Tensor | None, micro: MicroBatch
    ) -> tuple[Tensor, Tensor | None]:
        """Run the sublayers in order; the stream, and what is still to be added to it."""
        if self.recompute and torch.is_grad_enabled():
            return again(self._whole, added(x_sbh, delta_sbh), micro), None
        for sublayer in self.children():
            x_sbh, delta_sbh = sublayer(x_sbh, delta_sbh, micro)
        return x_sbh, delta_sbh

    def _whole(self, x_sbh: Tensor, micro: MicroBatch) -> Tensor:
        delta_sbh = None
        for sublayer in self.children():
            x_sbh, delta_sbh = sublayer(x_sbh, delta_sbh, micro)
        return added(x_sbh, delta_sbh)


def added(x_sbh: Tensor, delta_sbh: Tensor | None) -> Tensor:
    """The stream with what is still to be added to it."""
    return x_sbh if delta_sbh is None else x_sbh + delta_sbh


class Embedding(nn.Module):
    """Token embedding, learned positions, dropout."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.weight = parameter((spec.vocab, spec.hidden), split=0, init="normal")
        learned = spec.position == "learned"
        size = (spec.seq, spec.hidden)
        self.position = parameter(size, split=None, init="normal") if learned else None
        self.drop = Dropout(spec.dropout, "embed")

    def forward(self, micro: MicroBatch) -> Tensor:
        """[s, b] token numbers to [s, b, h]."""
        x = F.embedding(micro.tokens_sb, self.weight)
        if self.position is not None:
            x = x + self.position[: x.shape[0], None]
        return self.drop(x, micro)


class Head(nn.Module):
    """Final norm, output matrix and cross-entropy, summed over tokens."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm = Norm(spec)
        self.weight = parameter((spec.vocab, spec.hidden), split=0, init="normal")

    def forward(self, x_sbh: Tensor, delta_sbh: Tensor | None, micro: MicroBatch) -> Tensor:
        """Sum of the negative log-likelihoods of the targets, a scalar."""
        logits = F.linear(self.norm(x_sbh, delta_sbh)[0], self.weight)
        flat = logits.flatten(0, 1).float() if logits.dtype.itemsize < 4 else logits.flatten(0, 1)
        return F.cross_entropy(flat, micro.targets_sb.flatten(), reduction="sum")


class Chunk(nn.Module):
    """A consecutive piece of the model: some layers, the embedding if first, the head if last."""

    def __init__(self, spec: ModelSpec, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = Embedding(spec) if first else None
        self.layers = nn.ModuleDict({str(i): Block(spec, i) for i in layers})
        self.head = Head(spec) if last else None
        if self.embed is not None and self.head is not None and spec.tied:
            self.head.weight = self.embed.weight
        name_parameters(self, tied=spec.tied)

    def forward(self, x_sbh: Tensor | None, micro: MicroBatch) -> Tensor:
        """The stream after this piece; the summed loss if it is the last."""
        x = self.embed(micro) if self.embed is not None else x_sbh
        assert x is not None, "only the first chunk begins with an embedding"
        delta: Tensor | None = None
        for layer in self.layers.values():
            x, delta = layer(x, delta, micro)
        return added(x, delta) if self.head is None else self.head(x, delta, micro)


def whole_model(spec: ModelSpec, *, seed: int, dtype: torch.dtype) -> Chunk:
    """The plain single-process model: what every layout must agree with."""
    model = Chunk(spec, range(spec.layers), first=True, last=True).to(dtype)
    set_seed(model, seed)
    with torch.no_grad():
        for tensor in model.parameters():
            info = info_of(tensor)
            box = info.box(0, 1)
            initialize(tensor, info, box, seed=seed, std=spec.init_std, layers=spec.layers)
    return model


def again(function: Callable[..., Tensor], *inputs: object) -> Tensor:
    """Call a function whose inner activations are dropped and computed again in the backward.

    No random state is saved: dropout here is counted, so the second run draws the same masks.
    """
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def set_recompute(model: nn.Module, mode: Recompute) -> None:
    """Say what every block keeps for its backward."""
    for module in model.modules():
        if isinstance(module, Block):
            module.recompute = mode == "full"
        elif isinstance(module, Sublayer):
            module.recompute = mode == "selective"


def set_seed(model: nn.Module, seed: int) -> None:
    """Tell every dropout the run's seed."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.seed = seed
