"""Compute time of one transformer layer on one device, operation by operation; FLOPs and MFU.

Every GEMM is priced by its own (m, n, k): tiles are dealt to multiprocessors in waves, a tile pays
a prologue in k, odd sizes pay for alignment. Element-wise kernels are priced by bytes, attention
by kernel. Letters: T tokens of a micro-batch on a rank, h hidden, t tensor-parallel degree. Paper
3.1, 3.3, 6.1.
"""

from typing import NamedTuple

import numpy as np

from engine.plan.setup import Grid, Job, Num, Recompute
from engine.spec.model import AttentionCount, ModelSpec

_TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.9), (64.0, 64.0, 0.6))

_KERNELS: dict[str, tuple[tuple[float, float], ...]] = {
    "flash1": ((0.25, 0.18), (0.40, 0.32), (0.24, 0.19), (0.12, 0.10)),
    "triton": ((0.25, 0.18), (0.48, 0.38), (0.24, 0.19), (0.12, 0.10)),
    "flash2": ((0.30, 0.22), (0.65, 0.54), (0.42, 0.36), (0.22, 0.18)),
    "cudnn": ((0.30, 0.22), (0.65, 0.54), (0.58, 0.46), (0.55, 0.45)),
}
"""Share of the 16-bit peak of (forward, backward) on Volta, Ampere, Hopper and Blackwell."""

_HEADS: dict[str, tuple[int, ...]] = {
    "flash1": (16, 32, 64, 128),
    "triton": (16, 32, 64, 128),
    "flash2": (32, 64, 96, 128, 160, 192, 224, 256),
    "cudnn": (64, 128, 192, 256),
}
"""Head sizes that a kernel is built for; others are computed at the next larger one."""

_EAGER_SCORES = 2.5
"""Bytes per score of attention written out op by op (scale, mask, fp32 softmax, cast) / unfused."""

_EAGER_RMSNORM_BYTES = 36.0
"""Per element, read + written: fp32 2+4, square 4+4, mean 4, scale 4+4, bf16 4+2, weight 2+2."""

_EAGER_ROTARY_BYTES = 18.0
"""Per element of q and k: times cosine 2+2, rotated 2+2, times sine 2+2, added 4+2."""


PER_OP_GEMMS = 0.35
"""Share of a layer's forward GEMMs that per-operation recomputation repeats."""


class LayerCost(NamedTuple):
    """Seconds of one layer, one micro-batch, one device; communication is in `network`."""

    gemm_f: Num
    gemm_dgrad: Num
    gemm_wgrad: Num
    attention_f: Num
    attention_b: Num
    elementwise_f: Num
    elementwise_b: Num
    host_f: Num
    host_b: Num
    serial: float

    @property
    def forward_s(self) -> Num:
        """Device time, or the host's if it cannot issue kernels fast enough."""
        device = self.gemm_f + self.attention_f + self.elementwise_f
        return np.maximum(device, self.host_f) + self.serial * np.minimum(device, self.host_f)

    @property
    def backward_s(self) -> Num:
        """Both gradients, no recomputation."""
        device = self.gemm_dgrad + self.gemm_wgrad + self.attention_b + self.elementwise_b
        return np.maximum(device, self.host_b) + self.serial * np.minimum(device, self.host_b)


def gemm_s(job: Job, m: Num, n: Num, k: Num, *, low: bool = True) -> Num:
    """Seconds of an [m, k] x [k, n] product.

    low=False keeps 16 bits where the job trains in 8 or 4.
    """
    device, physics = job.cluster.device, job.physics
    peak = job.peak_flops_per_s
    if not low and job.precision.startswith(("fp8", "fp4")):
        peak = device.peak_flops_per_s.get("bf16", peak)
    rate = peak * device.sustained * job.speed
    units = float(device.units or 1)
    share = physics.wave_share
    if job.model.block == "parallel":
        share = share * (1 - physics.branch_fill)
    best: Num = np.inf
    for rows, columns, speed in _TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        if device.units:
            exact = tiles / units
            waves = share * np.ceil(exact) + (1 - share) * np.maximum(exact, 1.0)
        else:
            waves = tiles
        seconds = waves * units * 2.0 * rows * columns * (k + physics.k_fill) / (rate * speed)
        best = np.minimum(best, seconds)
    moved = 2.0 * (m * k + k * n + m * n) / (device.memory_bytes_per_s * physics.hbm)
    aligned = _aligned(job, n) * _aligned(job, k)
    return np.maximum(best / aligned, moved)


def _aligned(job: Job, side: Num) -> Num:
    """Speed of a GEMM whose side is not a multiple of 64 elements."""
    rough = np.where(side % 8 == 0, job.physics.align_64, job.physics.align_8)
    return np.where(side % 64 == 0, 1.0, rough)


def layer_cost(job: Job, grid: Grid) -> LayerCost:
    """All operations of one layer."""
    tokens = job.model.seq * grid.micro_batch / grid.cp
    forward, dgrad, wgrad = _gemms(job, grid, tokens)
    attention_f, attention_b = attention_s(job, grid, tokens)
    elementwise = _elementwise_s(job, grid, tokens)
    kernels = _kernels(job)
    collectives = np.where(grid.tp > 1, 2.0 if job.model.block == "serial" else 1.0, 0.0)
    issue = job.physics.launch_s * (1 - job.profile.graphs)
    host = kernels * issue + collectives * job.physics.collective_host_s
    return LayerCost(
        gemm_f=forward,
        gemm_dgrad=dgrad,
        gemm_wgrad=wgrad,
        attention_f=attention_f,
        attention_b=attention_b,
        elementwise_f=elementwise,
        elementwise_b=1.6 * elementwise,
        host_f=host,
        host_b=1.8 * host,
        serial=job.profile.host_serial,
    )


def _gemms(job: Job, grid: Grid, tokens: Num) -> tuple[Num, Num, Num]:
    """Forward, input-gradient and weight-gradient products of a layer."""
    model = job.model
    t = grid.tp
    gated = 2 if model.activation == "swiglu" else 1
    shapes = [
        (tokens, (model.q_size + 2 * model.kv_size) / t, model.hidden, 1.0),
        (tokens, model.hidden, model.q_size / t, 1.0),
    ]
    if job.experts is None:
        shapes += [
            (tokens, gated * model.ffn / t, model.hidden, 1.0),
            (tokens, model.hidden, model.ffn / t, 1.0),
        ]
    else:
        shapes += _expert_shapes(job, grid, tokens, gated)
    forward = dgrad = wgrad = 0.0
    for m, n, k, count in shapes:
        forward = forward + count * gemm_s(job, m, n, k)
        dgrad = dgrad + count * gemm_s(job, m, k, n)
        wgrad = wgrad + count * gemm_s(job, k, n, m)
    return forward, dgrad, wgrad


def _expert_shapes(
    job: Job, grid: Grid, tokens: Num, gated: int
) -> list[tuple[Num, Num, Num, Num]]:
    """GEMMs of a sparse layer averaged over the model: routed, shared and dense parts."""
    experts, model = job.experts, job.model
    assert experts is not None, "dense models have no expert shapes"
    sparse = 1.0 - experts.dense_layers / model.layers
    local = experts.count / grid.ep
    routed = tokens * experts.top_k / local
    parts = [(routed, float(experts.ffn), local * sparse)]
    if experts.shared_ffn:
        parts.append((tokens, experts.shared_ffn / grid.tp, sparse))
    if experts.dense_layers:
        parts.append((tokens, model.ffn / grid.tp, 1.0 - sparse))
    shapes = []
    for m, width, count in parts:
        shapes += [(m, gated * width, model.hidden, count), (m, model.hidden, width, count)]
    return shapes


def attention_s(job: Job, grid: Grid, tokens: Num) -> tuple[Num, Num]:
    """Forward and backward of scores, softmax and values, by kernel."""
    model, device = job.model, job.cluster.device
    peak = device.peak_flops_per_s.get("bf16", job.peak_flops_per_s)
    span = model.attention_span("window")
    if job.attention in _KERNELS:
        forward, backward = _KERNELS[job.attention][_generation(peak)]
        window = min(1.0, span / model.seq)
        seen = model.seq * window * (1 - window / 2)  # causal: half of the square, less of a band
        flops = 4.0 * tokens * seen * model.q_size / grid.tp
        odd = getattr(job.physics, job.attention) * _head_share(job.attention, model.head_dim)
        flops = flops * (1 + (1 - job.profile.cp_balance) * (1 - 1 / grid.cp))
        return flops / (peak * forward * odd), 2.5 * flops / (peak * backward * odd)
    scores = tokens * model.seq * model.heads / grid.tp
    flops = 4.0 * scores * model.head_dim
    aligned = _aligned(job, float(model.head_dim))
    products = flops / (peak * job.physics.scores_rate * aligned)
    share = {"fused-softmax": 0.6, "eager": _EAGER_SCORES}.get(job.attention, 1.0)
    moved = scores * job.physics.scores_bytes * share
    moving = moved / (device.memory_bytes_per_s * job.physics.hbm)
    return products + moving, 2.0 * products + 1.3 * moving


def _head_share(kernel: str, head_dim: int) -> float:
    """Useful share of the head size that the kernel computes, and of tiles that are not full."""
    built = next((size for size in _HEADS[kernel] if size >= head_dim), head_dim)
    return head_dim / built * (1.0 if built % 64 == 0 else 0.9)


def _generation(peak: float) -> int:
    return int(np.searchsorted((200e12, 500e12, 1500e12), peak))


def _elementwise_s(job: Job, grid: Grid, tokens: Num) -> Num:
    """Norms, residuals, dropout, activation and rotary positions, by bytes."""
    model, physics = job.model, job.physics
    split = np.where(grid.sequence_parallel > 0, grid.tp, 1.0)
    fused = job.profile.fused
    count = 1 if model.block == "parallel" else 2
    # RMSNorm and rotary positions written out in eager mode go through fp32 copies, op by op
    norms = count * (4.0 if fused or model.norm == "layernorm" else _EAGER_RMSNORM_BYTES)
    residuals = (1 if model.block == "parallel" else 2) * (7.0 if model.dropout else 6.0)
    wide = 6.0 if model.activation == "swiglu" else 4.0
    rotary = (4.0 if fused else _EAGER_ROTARY_BYTES) if model.position == "rotary" else 0.0
    ffn = model.ffn
    if job.experts is not None:
        ffn = job.experts.top_k * job.experts.ffn + job.experts.shared_ffn
    bytes_ = tokens * model.hidden * (norms + residuals) / split
    bytes_ = bytes_ + tokens * (wide * ffn + rotary * (model.q_size + model.kv_size)) / grid.tp
    if job.precision.startswith(("fp8", "fp4")):
        cast = _cast_bytes(job)
        bytes_ = bytes_ + tokens * cast * (2 * model.hidden + (model.q_size + ffn) / grid.tp)
    passes = 1.0 if job.profile.fused else physics.passes
    return bytes_ * passes / (job.cluster.device.memory_bytes_per_s * physics.hbm)


def _cast_bytes(job: Job) -> float:
    """Bytes per element of a GEMM input to make 8 bits of it.

    Delayed scaling: read 2, write 1. A scale from the tensor itself reads it twice; one for each
    row and each column does that along both axes, of which the forward pays about two thirds.
    """
    if job.precision.endswith("rowwise"):
        return 7.0
    return 5.0 if job.profile.dynamic_scales else 3.0


def _kernels(job: Job) -> float:
    """Kernels that the host issues for the forward of a layer."""
    base = 14.0 if job.profile.fused else 24.0
    base += 0.0 if job.attention in _KERNELS else 6.0
    if job.precision.startswith(("fp8", "fp4")):
        base += 8.0
    return base + (12.0 if job.experts is not None else 0.0)


def head_s(job: Job, grid: Grid) -> tuple[Num, Num]:
    """Forward and backward of final norm, logits and loss on the last stage."""
    model = job.model
    tokens = model.seq * grid.micro_batch / grid.cp
    width = model.vocab / grid.tp
    product = gemm_s(job, tokens, np.ceil(width / 64) * 64, model.hidden, low=False)
    loss = (
        job.physics.loss_bytes
        * tokens
        * width
        / (job.cluster.device.memory_bytes_per_s * job.physics.hbm)
    )
    return product + loss, 2.0 * product + 0.5 * loss


def flops_per_step(job: Job, count: AttentionCount = "full") -> float:
    """Model FLOPs of one optimizer step, without recomputation."""
    model = job.model
    tokens = float(job.global_batch * model.seq)
    dense = model.flops_per_token("full" if count == "full" else "none") * tokens
    if count == "window":
        dense += 12.0 * model.layers * model.q_size * _credited_span(model) * tokens
    if job.experts is None:
        return dense
    experts = job.experts
    gated = 3 if model.activation == "swiglu" else 2
    width = experts.top_k * experts.ffn + experts.shared_ffn - model.ffn
    sparse = model.layers - experts.dense_layers
    return dense + 6.0 * tokens * sparse * gated * model.hidden * width


def repeated_flops(job: Job, recompute: Recompute) -> float:
    """FLOPs of a step that recomputation adds to the model's: a forward is a third of them.

    All of a layer, or the attention core only; where a system chooses by operation, the share of
    GEMMs that it repeats. Published figures differ: in Korthikanti et al. (table 5) the core counts
    three times.
    """
    model, tokens = job.model, float(job.global_batch * job.model.seq)
    head = 6.0 * model.vocab * model.hidden * tokens
    layers = flops_per_step(job) - head
    if recompute == "full":
        return layers / 3.0
    core = (model.flops_per_token("full") - model.flops_per_token("none")) * tokens
    if recompute == "selective":
        return (PER_OP_GEMMS * (layers - core) if job.chooses_by_operation else core) / 3.0
    return 0.0


def _credited_span(model: ModelSpec) -> float:
    """Keys a query is credited with under sliding windows: share of causal scores kept, times s."""
    shares = [min(1.0, (model.window_of(i) or model.seq) / model.seq) for i in range(model.layers)]
    return model.seq * sum(1 - (1 - share) ** 2 for share in shares) / model.layers


def mfu(job: Job, step_s: Num, world: Num, count: AttentionCount = "full") -> Num:
    """Model FLOP/s over the peak of all devices; `count` says how attention is credited."""
    return flops_per_step(job, count) / (step_s * world * job.peak_flops_per_s)
