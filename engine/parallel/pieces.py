"""How many pieces a tensor-parallel GEMM is cut into: a cost model of Figure 3 of the paper.

More pieces hide more, and cost a latency each: k pieces of a GEMM of g seconds behind a transfer of
w seconds take  w/k + l  for the first transfer, (k - 1) times the longer of  w/k + l  and  g/k, and
g/k for the last GEMM. A pure function of the recipe and the kind of device, so that every run cuts
alike and adds alike.
"""

from engine.spec.recipe import Recipe
from engine.spec.shape import cuts

_UNKNOWN = 4
"""Without a cluster: three quarters can hide, and four latencies are paid."""
_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2}


def pieces_of(recipe: Recipe, *, on_cpu: bool = False, cut: bool = False) -> int:
    """Pieces of the recipe's tensor-parallel GEMMs; divides the tokens that a rank holds.

    On a CPU that the recipe does not describe they stay whole: transfers are work for the cores
    that multiply, so nothing hides, and a step in pieces took up to twice as long. `cut` asks how
    many there would be if they were to be cut, whatever the recipe's switches say.
    """
    layout, overlap = recipe.layout, recipe.overlap
    if overlap.tp_pieces and not cut:
        return overlap.tp_pieces
    if layout.tp == 1 or not layout.sequence_parallel or not (overlap.tp or cut):
        return 1
    counts = cuts(recipe.model.seq // layout.tp)
    if not counts:
        return 1  # the recipe's check refuses this where it was meant to overlap
    cost = _costs(recipe)
    if cost is None and on_cpu:
        return 1
    if cost is None:
        return min(counts, key=lambda k: abs(k - _UNKNOWN))
    return min(counts, key=lambda k: (pipelined_s(k, *cost), k))


def pipelined_s(k: int, wire_s: float, gemm_s: float, latency_s: float) -> float:
    """Seconds that k pieces take, transfers and GEMMs in turn on two lanes."""
    transfer, multiply = wire_s / k + latency_s, gemm_s / k
    return transfer + (k - 1) * max(transfer, multiply) + multiply


def _costs(recipe: Recipe) -> tuple[float, float, float] | None:
    """Wire, GEMM and latency seconds of the projection into the MLP; None without a cluster."""
    cluster, layout, model = recipe.cluster, recipe.layout, recipe.model
    if cluster is None or recipe.train.precision not in cluster.device.peak_flops_per_s:
        return None
    tokens = model.seq * recipe.batch.micro_batch
    part_bytes = tokens // layout.tp * model.hidden * _BYTES[recipe.train.precision]
    link = cluster.intra if layout.tp <= cluster.gpus_per_node else cluster.inter
    wire_s = (layout.tp - 1) * part_bytes / link.bytes_per_s
    rate = cluster.device.peak_flops_per_s[recipe.train.precision] * cluster.device.sustained
    gemm_s = 2 * tokens * model.hidden * model.ffn / layout.tp / rate
    return wire_s, gemm_s, link.latency_s
