"""Bytes a rank needs, stage by stage: weights, gradients, optimizer, activations, logits, reserve.

Activations follow from the micro-batches that the schedule holds in flight; `in_flight` is the
closed form of what `engine.schedule.verify.peak_activations` counts. Formulas:
docs/explanation/cost-model.md.
"""

from typing import NamedTuple

import numpy as np

from engine.plan.price import stage_params
from engine.plan.setup import GPIPE, SCORES_IN_MEMORY, ZERO_BUBBLE, Grid, Job, Num

_LIVE = 2.0
"""A layer in its backward holds its activations and as much in their gradients."""

_PER_OP_KEPT = 0.45
"""Share of a flash-attention layer's activations that per-operation recomputation keeps.

Recomputing only the attention core saves nothing where a flash kernel keeps no scores.
"""


_WAITING = 0.5
"""A weight gradient put off keeps the gradients of its products' outputs: share of activations."""

MARGIN = 1.08
"""P90 of measured over predicted peak memory; a layout fits if its P90 does."""


class Memory(NamedTuple):
    """Bytes of one rank on the stage that needs most."""

    weights: Num
    gradients: Num
    optimizer: Num
    activations: Num
    logits: Num
    reserve: Num
    stage: Num

    @property
    def total(self) -> Num:
        """All of it."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.reserve


def fits(job: Job, memory: Memory) -> Num:
    """Whether the P90 of the prediction is within the device."""
    return memory.total * MARGIN <= float(job.cluster.device.memory_bytes)


def in_flight(grid: Grid, microbatches: Num, stage: Num) -> Num:
    """Most (chunk, micro-batch) activations a stage holds, by schedule."""
    p, v, m = grid.pp, grid.vpp, microbatches
    plain = np.minimum(m, p - stage)
    rounds = np.maximum(1.0, np.floor(m / p))
    per_round = np.ceil(m / rounds)
    warm = (v - 1) * per_round + 2 * (p - 1 - stage) + 1
    usual = np.where(v > 1, np.minimum(m * v, warm), plain)
    split = np.minimum(m * v, (v - 1) * per_round + p)
    usual = np.where(grid.schedule == ZERO_BUBBLE, split, usual)
    return np.where(grid.schedule == GPIPE, m * v, usual)


def layer_bytes(job: Job, grid: Grid) -> Num:
    """Activations that one layer keeps for its backward, one micro-batch."""
    model = job.model
    t = grid.tp
    tokens = model.seq * grid.micro_batch / grid.cp
    split = np.where(grid.sequence_parallel > 0, t, 1.0)
    norms = 1.0 if model.block == "parallel" else 2.0
    masks = 2.0 if model.dropout else 0.0
    fused = job.profile.fused
    norm_bytes = 4.0 if fused else 8.0  # unfused norms keep their input in fp32 too
    outside = (norms * norm_bytes + masks) * model.hidden / split
    heads = 2.0 * (2 * model.q_size + 2 * model.kv_size) / t
    if model.position == "rotary" and not fused:
        heads = heads + 2.0 * (model.q_size + model.kv_size) / t
    ffn = model.ffn
    if job.experts is not None:
        ffn = job.experts.top_k * job.experts.ffn + job.experts.shared_ffn
    gated = 6.0 if fused else 8.0
    wide = (gated if model.activation == "swiglu" else 4.0) * ffn / t
    inner = tokens * (outside + heads + wide)
    scores = 0.0 * tokens
    if job.attention in SCORES_IN_MEMORY:
        per_score = 4.0 if job.attention == "fused-softmax" else 5.0
        scores = per_score * tokens * model.seq * model.heads / t
    kept = np.where(grid.recompute == 0, inner + scores, inner)
    if job.attention not in SCORES_IN_MEMORY and job.profile.per_op_recompute:
        kept = np.where(grid.recompute == 1, inner * _PER_OP_KEPT, kept)
    boundary = 2.0 * tokens * model.hidden / np.where(grid.sequence_parallel > 0, t, 1.0)
    return np.where(grid.recompute == 2, boundary, kept)


def _live_layer_bytes(job: Job, grid: Grid) -> Num:
    """With full recomputation one layer's activations exist while its backward runs."""
    whole = layer_bytes(job, grid._replace(recompute=0.0 * grid.recompute))
    return np.where(grid.recompute == 2, _LIVE * whole, 0.0)


def memory_of(job: Job, grid: Grid, stage: Num) -> Memory:
    """Bytes of a rank on one stage."""
    inner, ends = stage_params(job, grid)
    first = np.where(stage == 0, ends, 0.0)
    last = np.where((stage == grid.pp - 1) & (grid.pp > 1), ends, 0.0)
    params = inner + first + last
    replicas = grid.dp * grid.cp
    shard = np.where(grid.shard > 0, np.minimum(grid.shard, replicas), replicas)
    grad = job.profile.held_grad_bytes
    weights = 2.0 * params / np.where(grid.zero == 3, shard, 1.0)
    gathered = np.where(grid.zero == 3, 4.0 * inner / np.ceil(job.model.layers / grid.pp), 0.0)
    gradients = grad * params / np.where(grid.zero >= 3, shard, 1.0)
    optimizer = 12.0 * params / np.where(grid.zero >= 1, shard, 1.0)
    each = np.ceil(job.model.layers / (grid.pp * grid.vpp))
    held = in_flight(grid, job.microbatches(grid), stage)
    kept = layer_bytes(job, grid)
    activations = held * each * kept + _live_layer_bytes(job, grid)
    waiting = np.where(grid.schedule == ZERO_BUBBLE, np.minimum(stage, held), 0.0)
    activations = activations + waiting * each * _WAITING * kept
    tokens = job.model.seq * grid.micro_batch / grid.cp
    if job.profile.keeps_outputs:
        activations = activations + np.where(grid.pp > 1, held, 1.0) * 2.0 * tokens * (
            job.model.hidden
        )
    logits = np.where(
        stage == grid.pp - 1, job.profile.logit_bytes * tokens * job.model.vocab / grid.tp, 0.0
    )
    used = weights + gathered + gradients + optimizer + activations + logits
    return Memory(
        weights=weights + gathered,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        reserve=job.profile.reserve_bytes + (job.profile.fragments - 1) * used,
        stage=stage,
    )


def peak_memory(job: Job, grid: Grid) -> Memory:
    """Bytes on the stage that needs most: the first (activations) or the last (logits)."""
    first = memory_of(job, grid, 0.0 * grid.pp)
    last = memory_of(job, grid, grid.pp - 1)
    late = last.total > first.total
    return Memory(*(np.where(late, b, a) for a, b in zip(first, last, strict=True)))
