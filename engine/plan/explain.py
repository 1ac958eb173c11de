"""Why a layout gets the MFU it gets, and what would change it.

The waterfall divides a simulated step into causes whose seconds add up to the step; divided by the
step they are the points of MFU each cause costs. Sensitivities price the same layout on changed
hardware.
"""

import msgspec

from engine.plan.cost import head_s, layer_cost
from engine.plan.price import jitter_of
from engine.plan.report import Budget, Candidate, Sensitivity, Share
from engine.plan.search import ideal_s
from engine.plan.setup import Job, PlanLayout, single
from engine.plan.simulate import Step, simulate_step
from engine.spec.cluster import ClusterSpec, LinkSpec


def waterfall(job: Job, layout: PlanLayout, step: Step) -> tuple[Share, ...]:
    """From the peak to the MFU: one cause after the other, averaged over the stages."""
    grid = single(layout)
    prices, layer = step.price, layer_cost(job, grid)
    passes = prices.microbatches * job.model.layers / layout.pp
    ends = prices.microbatches / layout.pp
    head = float(sum(head_s(job, grid)))
    gemm = float(layer.gemm_f + layer.gemm_dgrad + layer.gemm_wgrad)
    attention = float(layer.attention_f + layer.attention_b)
    elementwise = float(layer.elementwise_f + layer.elementwise_b)
    host = float(layer.forward_s + layer.backward_s) - gemm - attention - elementwise
    ideal = ideal_s(job, layout.world_size)
    slope, jitter = job.profile.slope, float(jitter_of(job, job.cluster.nodes))
    m_chunks = prices.microbatches * layout.vpp
    causes = [
        (
            "matrix products and attention below peak",
            passes * (gemm + attention) + ends * head - ideal,
        ),
        ("element-wise kernels", passes * elementwise),
        ("kernel launches", passes * host),
        ("recomputation", m_chunks * prices.recompute_s / (slope * jitter)),
        ("tensor-parallel communication", step.exposed_tp_s / (slope * jitter)),
        (
            "context- and expert-parallel communication",
            m_chunks * prices.cp_ep_s / (slope * jitter),
        ),
        ("gathers of ZeRO-3", m_chunks * prices.micro_dp_s / (slope * jitter)),
    ]
    inside = ideal + sum(seconds for _, seconds in causes)
    causes += [
        ("framework overhead per micro-batch", inside * (slope - 1.0)),
        ("slow and uneven nodes", inside * slope * (jitter - 1.0)),
        ("pipeline bubble", step.compute_only_s - step.busy_s),
        ("pipeline communication", step.exposed_pp_s),
        ("data-parallel communication", step.exposed_dp_s - m_chunks * prices.micro_dp_s),
        ("optimizer, input and host per step", prices.tail_s),
    ]
    rest = step.step_s - ideal - sum(seconds for _, seconds in causes)
    causes.append(("embedding, uneven stages, interference", rest))
    return tuple(
        Share(cause=name, seconds=seconds, points=seconds / step.step_s)
        for name, seconds in causes
        if abs(seconds) > 1e-6 * step.step_s
    )


def sensitivities(job: Job, best: Candidate) -> tuple[Sensitivity, ...]:
    """The same layout with one thing changed at a time, largest gain first."""
    found = []
    for name, changed in _changes(job):
        seconds = simulate_step(changed, best.layout).step_s
        work = changed.global_batch / job.global_batch
        useful = best.mfu * best.step_s * work / seconds
        found.append(Sensitivity(change=name, step_s=seconds, points=useful - best.mfu))
    return tuple(sorted(found, key=lambda s: -s.points))


def _changes(job: Job) -> list[tuple[str, Job]]:
    """Hardware, system and training changes that people ask about."""
    replace = msgspec.structs.replace
    cluster, device, profile = job.cluster, job.cluster.device, job.profile
    faster = replace(device, memory_bytes_per_s=1.25 * device.memory_bytes_per_s)
    calm = replace(profile, slow_hosts=0.0)
    even = replace(job.physics, spread=0.0)
    return [
        ("a second NIC per device", _with(job, _faster(cluster, inter=2.0))),
        ("half the network", _with(job, _faster(cluster, inter=0.5))),
        ("twice the links inside a node", _with(job, _faster(cluster, intra=2.0))),
        ("memory 25 % faster", _with(job, replace(cluster, device=faster))),
        ("GEMM kernels 10 % faster", replace(job, speed=1.1 * job.speed)),
        ("no slow or uneven nodes", replace(job, profile=calm, physics=even)),
        ("no host time per step", replace(job, profile=replace(profile, intercept_s=0.0))),
        ("twice the global batch", replace(job, global_batch=2 * job.global_batch)),
        (
            "a parallel transformer block",
            replace(job, model=replace(job.model, block="parallel")),
        ),
    ]


def _with(job: Job, cluster: ClusterSpec) -> Job:
    return msgspec.structs.replace(job, cluster=cluster)


def _faster(cluster: ClusterSpec, *, intra: float = 1.0, inter: float = 1.0) -> ClusterSpec:
    def scaled(link: LinkSpec, factor: float) -> LinkSpec:
        return msgspec.structs.replace(link, bytes_per_s=factor * link.bytes_per_s)

    return msgspec.structs.replace(
        cluster, intra=scaled(cluster.intra, intra), inter=scaled(cluster.inter, inter)
    )


def budget(best: Candidate, tokens: float, price_per_gpu_hour: float) -> Budget:
    """Days, GPU-hours and money to train on `tokens` at the predicted rate, without failures."""
    seconds = tokens / best.tokens_per_s
    hours = seconds / 3600 * best.layout.world_size
    return Budget(
        tokens=tokens, days=seconds / 86400, gpu_hours=hours,
        price_per_gpu_hour=price_per_gpu_hour, cost=hours * price_per_gpu_hour,
    )  # fmt: skip
