"""From operations and collectives to the durations of a pipeline step, for one layout or many.

The result has what the schedule simulator asks for (forward and backward of a chunk, a message, a
gather, a reduction), what lies outside the pipeline (optimizer, host), and the parts from which the
explanation is drawn. `bound_s` is a proven lower bound of the simulated step. Paper 2, 3.1, 3.2.
"""

from typing import NamedTuple

import numpy as np

from engine.plan.cost import PER_OP_GEMMS, LayerCost, head_s, layer_cost
from engine.plan.network import message_s, ring_s
from engine.plan.setup import ZERO_BUBBLE, Grid, Job, Num

_PER_OP_GATHERS = 0.5
"""Share of a layer's TP traffic that per-operation recomputation repeats."""


class Traffic(NamedTuple):
    """Data-parallel seconds of a stage and step, before overlap."""

    gather_s: Num
    reduce_s: Num
    micro_f: Num
    micro_b: Num


class Price(NamedTuple):
    """Durations of one step; a chunk is layers / (pp * vpp) layers."""

    microbatches: Num
    chunk_f: Num
    chunk_b: Num
    chunk_w: Num
    embed_f: Num
    embed_b: Num
    head_f: Num
    head_b: Num
    send_s: Num
    gather_s: Num
    reduce_s: Num
    tail_s: Num
    tail_dp_s: Num
    tp_s: Num
    cp_ep_s: Num
    recompute_s: Num
    micro_dp_s: Num
    compute_s: Num
    jitter: Num

    def bound_s(self, job: Job, grid: Grid) -> Num:
        """No schedule of this kind finishes earlier (proof: docs/explanation/cost-model.md).

        Stage i cannot start before chunks 0..i-1 have run forward once, and after its last
        backward the chunks i-1..0 still have to run backward; in between lies all of its own work.
        """
        p, v, m = grid.pp, grid.vpp, self.microbatches
        chunk = self.chunk_f + self.chunk_b
        embed, head = self.embed_f + self.embed_b, self.head_f + self.head_b
        work = m * v * chunk
        if not job.profile.overlap_pp:
            work = work + np.where(p > 1, m * (2 * v - 1) * self.send_s, 0.0)
        split = grid.schedule == ZERO_BUBBLE  # weight gradients may follow the way back
        idle = np.where(split, self.chunk_f, chunk)
        before = np.where(split, self.embed_f, embed)
        last = work + m * head + (p - 1) * idle + np.where(p > 1, before, m * embed)
        hops = np.where(split, p - 1, np.maximum(0.0, 2 * (p - 1) - 1))
        last = last + np.where(p > 1, hops, 0.0) * self.send_s
        inner = work + np.maximum(0.0, p - 2) * idle + np.where(p > 1, before, 0.0)
        first = m * v * chunk + m * embed
        longest = np.maximum(np.maximum(first, inner), last)
        return longest + self.gather_s + self.reduce_s + self.tail_s + self.tail_dp_s


def price(job: Job, grid: Grid) -> Price:
    """Price every layout of a grid."""
    profile, physics, model = job.profile, job.physics, job.model
    layer = layer_cost(job, grid)
    tp_f, tp_b, tp_hidden = _tensor_parallel_s(job, grid, layer)
    other = _context_s(job, grid, layer) + _expert_s(job, grid)
    again = _recompute_s(job, grid, layer, tp_f)
    traffic = _data_parallel_s(job, grid)
    each = np.ceil(model.layers / (grid.pp * grid.vpp))
    missing_first, missing_last = _uneven(job, grid, each)
    forward, backward = layer.forward_s, layer.backward_s
    zero_f, zero_b = _gathered_s(job, grid, traffic, forward, backward + again)
    nodes = np.maximum(grid.tp * grid.pp * grid.dp * grid.cp / job.cluster.gpus_per_node, 1.0)
    jitter = jitter_of(job, nodes)
    scale = profile.slope * jitter
    slowed = physics.interference * tp_hidden
    chunk_f = each * scale * (forward + tp_f + other + zero_f + 0.5 * slowed)
    chunk_b = each * scale * (backward + tp_b + other + again + zero_b + 0.5 * slowed)
    head_f, head_b = head_s(job, grid)
    embed = _embedding_s(job, grid)
    gather, reduce, tail_dp = _exposed_dp_s(job, grid, traffic, chunk_f, chunk_b)
    return Price(
        microbatches=job.microbatches(grid),
        chunk_f=chunk_f,
        chunk_b=chunk_b,
        chunk_w=np.minimum(each * scale * layer.gemm_wgrad, chunk_b),
        embed_f=embed * scale - missing_first * chunk_f / each,
        embed_b=embed * scale - missing_first * chunk_b / each,
        head_f=head_f * scale - missing_last * chunk_f / each,
        head_b=head_b * scale - missing_last * chunk_b / each,
        send_s=_send_s(job, grid),
        gather_s=gather,
        reduce_s=reduce,
        tail_s=_update_s(job, grid) + profile.intercept_s,
        tail_dp_s=tail_dp,
        tp_s=each * scale * (tp_f + tp_b),
        cp_ep_s=each * scale * 2 * other,
        recompute_s=each * scale * again,
        micro_dp_s=each * scale * (zero_f + zero_b),
        compute_s=each * scale * (forward + backward),
        jitter=jitter,
    )


def jitter_of(job: Job, nodes: Num) -> Num:
    """How much longer a synchronous step takes than on one node: the slowest of all sets the pace.

    Normal spread: the expected maximum of n draws. Stragglers (paper 6.3): the chance that a job of
    n hosts has at least one of the few slow ones, times how slow those are.
    """
    profile = job.profile
    any_slow = 1.0 - (1.0 - profile.slow_hosts) ** nodes
    return 1.0 + job.physics.spread * np.sqrt(2.0 * np.log(nodes)) + profile.slow_by * any_slow


def _uneven(job: Job, grid: Grid, each: Num) -> tuple[Num, Num]:
    """Layers that the first and last chunk hold fewer than the others.

    Frameworks that count embedding and head as layers leave one out at both ends; what is still
    missing is missing at the end.
    """
    spare = each * grid.pp * grid.vpp - job.model.layers
    first = np.where(spare >= 2, 1.0, 0.0)
    return first, np.minimum(spare - first, each)


def _tensor_parallel_s(job: Job, grid: Grid, layer: LayerCost) -> tuple[Num, Num, Num]:
    """Exposed TP seconds of a layer, forward and backward, and the seconds that were hidden.

    Each of the block's one (parallel) or two (serial) regions gathers and scatters once per
    direction; an all-reduce is both. In backward part of it runs behind the weight-gradient GEMMs.
    """
    profile, model = job.profile, job.model
    tokens = model.seq * grid.micro_batch / grid.cp
    regions = 1.0 if model.block == "parallel" else 2.0
    unit = ring_s(job, bytes_=job.element_bytes * tokens * model.hidden, ranks=grid.tp, stride=1.0)
    one_way = 2.0 * regions * unit
    ahead = profile.tp_hidden if profile.overlap_tp else 0.0
    behind = np.maximum(profile.async_backward, ahead)
    hidden_f = np.minimum(ahead * one_way, layer.gemm_f)
    hidden_b = np.minimum(behind * one_way, layer.gemm_dgrad + layer.gemm_wgrad)
    # where weight gradients run later, only overlap with the input gradient is left
    alone = np.minimum(ahead * one_way, layer.gemm_dgrad)
    hidden_b = np.where(grid.schedule == ZERO_BUBBLE, alone, hidden_b)
    return one_way - hidden_f, one_way - hidden_b, hidden_f + hidden_b


def _context_s(job: Job, grid: Grid, layer: LayerCost) -> Num:
    """Exposed exchange of keys and values around the context-parallel ring."""
    model = job.model
    tokens = model.seq * grid.micro_batch / grid.cp
    keys = 2.0 * job.element_bytes * tokens * model.kv_size / grid.tp * grid.cp
    moving = ring_s(job, bytes_=keys, ranks=grid.cp, stride=grid.tp)
    return np.maximum(0.1 * moving, moving - layer.attention_f)


def _expert_s(job: Job, grid: Grid) -> Num:
    """Dispatch and combine of a sparse layer (all-to-all over ep), forward."""
    if job.experts is None:
        return 0.0
    tokens = job.model.seq * grid.micro_batch / grid.cp / grid.tp
    bytes_ = job.element_bytes * tokens * job.model.hidden * job.experts.top_k
    return 2.0 * ring_s(job, bytes_=bytes_, ranks=grid.ep, stride=grid.tp)


def _recompute_s(job: Job, grid: Grid, layer: LayerCost, tp_f: Num) -> Num:
    """Forward work repeated in the backward of a layer.

    Selective: the attention core (Megatron's meaning), or by operation (torchtitan's): all that is
    element-wise, every other GEMM and the gathers in front of them.
    """
    selective: Num = layer.attention_f
    if job.chooses_by_operation:
        selective = layer.elementwise_f + PER_OP_GEMMS * layer.gemm_f + _PER_OP_GATHERS * tp_f
    full = layer.forward_s + tp_f
    return np.where(grid.recompute == 2, full, np.where(grid.recompute == 1, selective, 0.0))


def stage_params(job: Job, grid: Grid) -> tuple[Num, Num]:
    """Parameters of a rank on an inner stage, and those it holds more on the first stage."""
    model = job.model
    layers = np.ceil(model.layers / (grid.pp * grid.vpp)) * grid.vpp
    dense = model.layer_params
    routed: Num = 0.0
    if job.experts is not None:
        gated = 3 if model.activation == "swiglu" else 2
        sparse = 1.0 - job.experts.dense_layers / model.layers
        shared = gated * model.hidden * (job.experts.shared_ffn - model.ffn)
        dense = round(dense + sparse * shared)
        routed = sparse * gated * model.hidden * job.experts.ffn * job.experts.count / grid.ep
    inner = layers * (dense / grid.tp + routed)
    ends = model.embedding_params / grid.tp
    whole = inner + np.where(grid.pp > 1, 0.0, 0.0 if model.tied else ends)
    return whole, ends


def _data_parallel_s(job: Job, grid: Grid) -> Traffic:
    inner, ends = stage_params(job, grid)
    params = inner + ends
    replicas = grid.dp * grid.cp
    shard = np.where(grid.shard > 0, np.minimum(grid.shard, replicas), replicas)
    stride = grid.tp
    grads = job.profile.grad_bytes * params
    reduce = ring_s(job, bytes_=grads, ranks=replicas, stride=stride)
    gather = ring_s(job, bytes_=job.element_bytes * params, ranks=shard, stride=stride)
    sharded = grid.zero >= 1
    whole = np.where(sharded & (shard >= replicas), reduce, 2.0 * reduce)
    local = ring_s(job, bytes_=2.0 * params, ranks=shard, stride=stride, calls=job.model.layers)
    back = ring_s(
        job, bytes_=job.profile.grad_bytes * params, ranks=shard, stride=stride,
        calls=job.model.layers,
    )  # fmt: skip
    per_layer = np.ceil(job.model.layers / grid.pp)
    three = grid.zero == 3
    net = job.profile.net
    return Traffic(
        gather_s=np.where(sharded & ~three, gather, 0.0) / net,
        reduce_s=np.where(three, np.where(shard < replicas, 2.0 * reduce / shard, 0.0), whole)
        / net,
        micro_f=np.where(three, local / per_layer, 0.0) / net,
        micro_b=np.where(three, (local + back) / per_layer, 0.0) / net,
    )


def _gathered_s(
    job: Job, grid: Grid, traffic: Traffic, forward: Num, backward: Num
) -> tuple[Num, Num]:
    """ZeRO-3: what a layer waits for its parameters and gradients beyond its own compute."""
    hide = job.profile.dp_hidden if job.profile.overlap_dp else 0.0
    slow = job.physics.interference
    gather = np.maximum(0.0, traffic.micro_f - hide * forward)
    back = np.maximum(0.0, traffic.micro_b - hide * backward)
    gather = gather + slow * np.minimum(traffic.micro_f, hide * forward)
    back = back + slow * np.minimum(traffic.micro_b, hide * backward)
    return gather, back


def _exposed_dp_s(
    job: Job, grid: Grid, traffic: Traffic, chunk_f: Num, chunk_b: Num
) -> tuple[Num, Num, Num]:
    """A chunk's gather and reduction as the simulator sees them, and what follows the pipeline.

    With one chunk per stage the buckets of a framework hide behind the layers of that chunk.
    """
    if not job.profile.overlap_dp:
        nothing = 0.0 * traffic.reduce_s
        return nothing, nothing, traffic.gather_s + traffic.reduce_s
    hide = job.profile.dp_hidden
    gather, reduce = traffic.gather_s / grid.vpp, traffic.reduce_s / grid.vpp
    left_g = np.maximum((1 - hide) * gather, gather - hide * chunk_f)
    left_r = np.maximum((1 - hide) * reduce, reduce - hide * chunk_b)
    hidden = gather + reduce - left_g - left_r
    return left_g, left_r, job.physics.interference * hidden


def _send_s(job: Job, grid: Grid) -> Num:
    """One pipeline message and the host time around it."""
    tokens = job.model.seq * grid.micro_batch / grid.cp
    bytes_ = job.element_bytes * tokens * job.model.hidden / grid.tp
    wire = message_s(job, grid, bytes_=bytes_)
    return np.where(grid.pp > 1, wire + job.profile.message_s, 0.0)


def _embedding_s(job: Job, grid: Grid) -> Num:
    """Look-up of token (and position) vectors, and its reduction over tp."""
    tokens = job.model.seq * grid.micro_batch / grid.cp
    bytes_ = 2.0 * tokens * job.model.hidden
    rate = job.cluster.device.memory_bytes_per_s * job.physics.hbm
    return 3.0 * bytes_ / rate + ring_s(job, bytes_=bytes_, ranks=grid.tp, stride=1.0)


def _update_s(job: Job, grid: Grid) -> Num:
    """Optimizer on the parameters a rank owns, and the norm of the gradients."""
    inner, ends = stage_params(job, grid)
    replicas = grid.dp * grid.cp
    shard = np.where(grid.shard > 0, np.minimum(grid.shard, replicas), replicas)
    owned = (inner + ends) / np.where(grid.zero >= 1, shard, 1.0)
    rate = job.cluster.device.memory_bytes_per_s * job.physics.hbm
    spread = np.where((grid.zero >= 1) & (shard > 1), shard * job.profile.owner_s, 0.0)
    return job.physics.update_bytes * owned / rate + spread
