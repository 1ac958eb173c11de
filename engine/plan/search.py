"""Which layouts there are, which of them can work, and which is fastest.

Enumerate everything that divides, refuse with a reason, bound the rest from below in one
vectorised pass, and simulate schedules from the lowest bound upwards until no bound can beat what
was simulated. Paper 2, 3.1, 3.6; plan's own limits are in docs/explanation/cost-model.md.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from engine.plan.cost import flops_per_step, mfu, repeated_flops
from engine.plan.memory import MARGIN, fits, memory_of, peak_memory
from engine.plan.price import Price, price
from engine.plan.profiles import fitted
from engine.plan.report import Candidate, Exposed, MemoryParts, Refusal
from engine.plan.setup import (
    RECOMPUTE,
    SCHEDULES,
    ZERO_BUBBLE,
    Grid,
    Job,
    PlanLayout,
    PlanSchedule,
    Recompute,
    grid_of,
)  # fmt: skip
from engine.plan.simulate import Step, pipeline_of, step_of

Bools = npt.NDArray[np.bool_]
MOST_STAGES = 64
MOST_MICRO_BATCH = 16
Z80 = 1.2816
"""Standard normal quantile of 90 %: P10 and P90 lie this many spreads from the middle."""


class Space(NamedTuple):
    """What may vary; a fixed axis is a tuple of one value, an empty one means all that divide."""

    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    micro_batch: tuple[int, ...] = ()
    recompute: tuple[Recompute, ...] = RECOMPUTE
    zero: tuple[int, ...] = (1,)
    sequence_parallel: tuple[bool, ...] = (True,)
    schedule: tuple[PlanSchedule, ...] = ("auto",)


class Found(NamedTuple):
    """The result of a search: ranked candidates, refusals, and how much work it was."""

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]
    considered: int
    simulated: int
    step: Step | None = None
    """The simulated step of the first candidate."""


def divisors(n: int) -> list[int]:
    """All divisors in rising order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def enumerate_grid(job: Job, gpus: int, space: Space) -> Grid:
    """Every combination whose degrees multiply to the number of devices, as arrays."""
    layers = job.model.layers
    shapes = []
    for tp in _options(space.tp, [d for d in divisors(gpus) if d <= 64]):
        for cp in space.cp or [d for d in divisors(gpus) if d <= 64]:
            rest = gpus // (tp * cp)
            if rest * tp * cp != gpus:
                continue
            for pp in _options(
                space.pp, [d for d in divisors(rest) if d <= min(layers, MOST_STAGES)]
            ):
                if rest % pp or (space.dp and rest // pp not in space.dp):
                    continue
                vpps = _options(space.vpp, [v for v in divisors(layers) if pp * v <= layers])
                shapes += [(tp, cp, pp, v, rest // pp) for v in vpps if pp > 1 or v == 1]
    micro = _options(
        space.micro_batch, [d for d in divisors(job.global_batch) if d <= MOST_MICRO_BATCH]
    )
    kinds = [RECOMPUTE.index(kind) for kind in space.recompute]
    rows = [
        (tp, pp, v, dp, cp, ep, split, zero, 0, b, kind, order)
        for tp, cp, pp, v, dp in shapes
        for order in _orders(space, pp, v)
        for ep in space.ep or divisors(dp)
        for split in space.sequence_parallel
        for zero in space.zero
        for b in micro
        for kind in kinds
    ]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(Grid._fields))
    return Grid(*table.T)


def _orders(space: Space, pp: int, vpp: int) -> list[int]:
    """Schedules that differ for a shape: none without a pipeline, GPipe with one chunk a stage."""
    kinds = [k for k in space.schedule if k != "gpipe" or vpp == 1]
    return [SCHEDULES.index(k) for k in kinds] if pp > 1 else [0]


def _options(fixed: tuple[int, ...], free: list[int]) -> list[int]:
    return list(fixed) if fixed else free


def refuse(job: Job, grid: Grid) -> list[tuple[str, str, Bools]]:
    """Rules in the order of checking: name, what it says, which layouts break it."""
    model, batch = job.model, job.global_batch
    replicas = grid.dp * grid.micro_batch
    m = np.floor(batch / replicas)
    return [
        ("tp divides heads",
         f"tp must divide model.heads = {model.heads} and model.kv_heads = {model.kv_heads}, "
         "or kv_heads divide tp",
         (model.heads % grid.tp != 0)
         | ((model.kv_heads % grid.tp != 0) & (grid.tp % model.kv_heads != 0))),
        ("tp divides ffn", f"tp must divide model.ffn = {model.ffn}", model.ffn % grid.tp != 0),
        ("tp stays in a node",
         f"tp must not exceed {job.cluster.gpus_per_node} devices of a node",
         grid.tp > job.cluster.gpus_per_node),
        ("chunks divide layers", f"pp * vpp must divide model.layers = {model.layers}",
         model.layers % (grid.pp * grid.vpp) != 0),
        ("cp divides seq", f"2 cp must divide model.seq = {model.seq}",
         (grid.cp > 1) & (model.seq % (2 * grid.cp) != 0)),
        ("batch divides",
         f"dp * micro_batch must divide the global batch of {batch} sequences",
         (batch % replicas != 0) | (m < 1)),
        ("interleaving needs full rounds",
         "with vpp > 1 or zero-bubble the micro-batches of a replica must be a multiple of pp",
         ((grid.vpp > 1) | (grid.schedule == ZERO_BUBBLE)) & (m % grid.pp != 0)),
    ]  # fmt: skip


def broken_rules(job: Job, grid: Grid) -> Bools:
    """Layouts that break a rule other than memory."""
    broken: Bools = np.zeros(len(grid.tp), dtype=bool)
    for _, _, hit in refuse(job, grid):
        broken |= hit
    return broken


def too_large(job: Job, grid: Grid) -> tuple[str, str, Bools]:
    """The rule of memory, as the others."""
    limit = float(job.cluster.device.memory_bytes)
    says = (
        f"the tightest stage may need more than {limit / 2**30:.0f} GiB "
        f"(prediction with its margin of {100 * (MARGIN - 1):.0f} %)"
    )
    return "memory", says, ~fits(job, peak_memory(job, grid))


def search(job: Job, gpus: int, space: Space, *, top: int = 10) -> Found:
    """The `top` fastest layouts by simulation, and why the others are not among them."""
    grid = enumerate_grid(job, gpus, space)
    if not len(grid.tp):
        return Found((), (_nothing(gpus, space),), 0, 0)
    grid, refusals = _keep(job, grid)
    if not len(grid.tp):
        return Found((), tuple(refusals), 0, 0)
    prices = price(job, grid)
    prices = Price(
        *(np.broadcast_to(np.asarray(c, dtype=np.float64), grid.tp.shape) for c in prices)
    )
    bounds = prices.bound_s(job, grid)
    order = np.lexsort((*_tie_breakers(grid), bounds))
    best: list[tuple[float, int, Price, float]] = []
    simulated = 0
    for index in order:
        if len(best) >= top and bounds[index] >= best[top - 1][0]:
            break
        one = Price(*(float(column[index]) for column in prices))
        pipeline_s = pipeline_of(job, grid.layout(int(index)), one)
        simulated += 1
        best.append((pipeline_s + one.tail_s + one.tail_dp_s, int(index), one, pipeline_s))
        best.sort(key=lambda item: (item[0], *_key(grid, item[1])))
    chosen, steps = [], []
    for _, index, one, pipeline_s in best[:top]:
        layout = grid.layout(index)
        steps.append(step_of(job, layout, one, pipeline_s))
        chosen.append(candidate_of(job, layout, steps[-1]))
    ranked = tuple(_pareto(chosen))
    return Found(ranked, tuple(refusals), len(grid.tp), simulated, steps[0] if steps else None)


def _keep(job: Job, grid: Grid) -> tuple[Grid, list[Refusal]]:
    """Layouts that break no rule, and the rules that were broken."""
    alive: Bools = np.ones(len(grid.tp), dtype=bool)
    refusals = []
    for rule, says, broken in [*refuse(job, grid), too_large(job, grid)]:
        hit = alive & broken
        if hit.any():
            text = f"{says}; {_example(job, grid, rule, hit)}"
            refusals.append(Refusal(rule=rule, count=int(hit.sum()), message=text))
        alive &= ~broken
    return grid.take(alive), refusals


def _example(job: Job, grid: Grid, rule: str, hit: Bools) -> str:
    """A layout that broke a rule; for memory the smallest, its tightest stage, what weighs most."""
    if rule != "memory":
        return f"e.g. {describe(grid.layout(int(np.argmax(hit))))}"
    refused = grid.take(hit)
    memory = peak_memory(job, refused)
    place = int(np.argmin(np.broadcast_to(memory.total, refused.tp.shape)))
    one = memory_of(job, refused.take(slice(place, place + 1)), memory.stage[place : place + 1])
    parts = {name: float(np.ravel(getattr(one, name))[0]) for name in one._fields[:-1]}
    most = max(parts, key=lambda name: parts[name])
    layout = refused.layout(place)
    return (
        f"the smallest, {describe(layout)}, needs {sum(parts.values()) / 2**30:.0f} GiB on stage "
        f"{int(memory.stage[place])}, {parts[most] / 2**30:.0f} of them {most}; {_HELPS[most]}"
    )


_HELPS = {
    "weights": "more tp or pp, or layout.zero=3, would make it smaller",
    "gradients": "more tp or pp would make it smaller",
    "optimizer": "more devices (dp) or layout.zero=1 would make it smaller",
    "activations": "recomputation, more tp or a smaller micro-batch would make it smaller",
    "logits": "more tp or a smaller micro-batch would make it smaller",
    "reserve": "a device with more memory is needed",
}
"""What to do about the part of memory that weighs most."""


def _nothing(gpus: int, space: Space) -> Refusal:
    return Refusal(
        rule="degrees multiply to devices", count=1,
        message=f"no tp * pp * dp * cp equals {gpus} devices under the constraints given",
    )  # fmt: skip


def _tie_breakers(grid: Grid) -> tuple[npt.NDArray[np.float64], ...]:
    """Equal bounds are ordered by the layout itself, never by the order of enumeration."""
    return tuple(reversed(grid))


def _key(grid: Grid, index: int) -> tuple[float, ...]:
    return tuple(float(column[index]) for column in grid)


def describe(layout: PlanLayout) -> str:
    """`tp 8 pp 8 vpp 6 dp 192 micro-batch 1`, with what is unusual."""
    text = f"tp {layout.tp} pp {layout.pp} vpp {layout.vpp} dp {layout.dp}"
    text += f" cp {layout.cp}" if layout.cp > 1 else ""
    text += f" ep {layout.ep}" if layout.ep > 1 else ""
    text += " ZeRO-3" if layout.zero == 3 else ""
    text += f" micro-batch {layout.micro_batch}"
    text += f" {layout.schedule}" if layout.schedule != "auto" else ""
    return text + (f" recompute {layout.recompute}" if layout.recompute != "none" else "")


def candidate_of(job: Job, layout: PlanLayout, step: Step) -> Candidate:
    """A simulated layout as the report shows it."""
    grid = grid_of([layout])
    memory = peak_memory(job, grid)
    spread = float(np.exp(Z80 * (job.profile.log_error or fitted().log_error)))
    world = layout.world_size
    again = 1.0 + repeated_flops(job, layout.recompute) / flops_per_step(job)
    useful = mfu(job, step.step_s, world)
    return Candidate(
        layout=layout,
        microbatches=int(step.price.microbatches),
        step_s=step.step_s,
        step_p10_s=step.step_s / spread,
        step_p90_s=step.step_s * spread,
        mfu=float(useful),
        mfu_window=float(mfu(job, step.step_s, world, "window")),
        hfu=float(useful) * again,
        tokens_per_s=job.global_batch * job.model.seq / step.step_s,
        bubble=step.bubble,
        exposed=Exposed(tp=step.exposed_tp_s, pp=step.exposed_pp_s, dp=step.exposed_dp_s),
        memory_bytes=float(memory.total[0]),
        memory=MemoryParts(
            stage=int(memory.stage[0]),
            weights=float(memory.weights[0]),
            gradients=float(memory.gradients[0]),
            optimizer=float(memory.optimizer[0]),
            activations=float(memory.activations[0]),
            logits=float(memory.logits[0]),
            reserve=float(memory.reserve[0]),
        ),
        bound_s=float(step.price.bound_s(job, grid)[0]),
    )


def _pareto(ranked: list[Candidate]) -> list[Candidate]:
    """Mark the candidates that no faster one beats in memory."""
    least = np.inf
    marked = []
    for candidate in ranked:
        on_front = candidate.memory_bytes < least
        least = min(least, candidate.memory_bytes)
        marked.append(msgspec.structs.replace(candidate, pareto=bool(on_front)))
    return marked


def ideal_s(job: Job, gpus: int) -> float:
    """Seconds of a step at the peak of every device."""
    return flops_per_step(job) / (gpus * job.peak_flops_per_s)
