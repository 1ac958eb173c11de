"""What a collective costs: latency, size-dependent bandwidth, and where its ranks sit (paper 3.6).

A group is described by its size and stride (distance of neighbours in rank numbers). With tp
fastest, a tensor-parallel group has stride 1 and a data-parallel group stride tp * cp; so each of
a node's network cards serves one of several strided groups, while a contiguous group uses all of
them.
"""

import numpy as np

from engine.plan.setup import Grid, Job, Num


def ring_s(job: Job, *, bytes_: Num, ranks: Num, stride: Num, calls: Num = 1.0) -> Num:
    """Seconds of an all-gather or reduce-scatter of `bytes_` (the full buffer); all-reduce is two.

    Ring: (n-1) hops of latency and (n-1)/n of the bytes through the narrowest place. `calls`
    spreads the bytes over several collectives, each with its own latency.
    """
    cluster, physics = job.cluster, job.physics
    per_node = np.clip(np.floor(cluster.gpus_per_node / stride), 1, ranks)
    nodes = np.ceil(ranks / per_node)
    inside = nodes <= 1
    wire = np.where(
        inside,
        cluster.intra.bytes_per_s * physics.intra,
        np.minimum(
            cluster.intra.bytes_per_s * physics.intra,
            per_node * cluster.inter.bytes_per_s * physics.inter,
        ),
    )
    half = np.where(inside, physics.half_intra_bytes, physics.half_inter_bytes)
    each = bytes_ / calls
    bandwidth = wire * each / (each + half)
    hops = (per_node - 1) * cluster.intra.latency_s + np.log2(np.maximum(nodes, 1)) * (
        cluster.inter.latency_s * 2
    )
    if cluster.cores:  # processes exchange directly: everything is posted at once
        hops = np.where(inside, cluster.intra.latency_s, cluster.inter.latency_s)
    share = (ranks - 1) / ranks
    seconds = calls * hops + bytes_ * share / np.maximum(bandwidth, 1.0)
    return np.where((ranks > 1) & (bytes_ > 0), seconds, 0.0)


def message_s(job: Job, grid: Grid, *, bytes_: Num) -> Num:
    """Seconds of one pipeline message between neighbouring stages."""
    cluster, physics = job.cluster, job.physics
    apart = grid.tp * grid.dp * grid.cp
    inside = apart * grid.pp <= cluster.gpus_per_node
    rate = np.where(
        inside,
        cluster.intra.bytes_per_s * physics.intra,
        cluster.inter.bytes_per_s * physics.inter,
    )
    latency = np.where(inside, cluster.intra.latency_s, cluster.inter.latency_s)
    return np.where(grid.pp > 1, latency + bytes_ / rate, 0.0)
