"""One step of a layout: run its schedule against the prices, and read off where the time went.

A pipeline is periodic: after its ramp, each round of pp micro-batches adds the same time. Long
steps are therefore simulated for a few rounds and continued at that rate, which a test compares
with the whole simulation. Paper 2, 3.2.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from engine.events.schema import Event
from engine.plan.cores import Phase, Resource, shared_makespan_s
from engine.plan.price import Price, price
from engine.plan.setup import Job, PlanLayout, single
from engine.schedule.action import Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import Simulation, Span, simulate
from engine.spec.shape import legal, resolve_kind

_MANY = 8
"""Rounds after which a last one that is not full changes little."""

_ROUNDS = (2, 3)
"""Rounds simulated of a long step; the difference is the rate at which it continues."""


class Step(NamedTuple):
    """Seconds of a simulated step and of its parts, and the price it was made from."""

    step_s: float
    pipeline_s: float
    compute_only_s: float
    busy_s: float
    bubble: float
    exposed_tp_s: float
    exposed_pp_s: float
    exposed_dp_s: float
    price: Price


def simulate_step(job: Job, layout: PlanLayout) -> Step:
    """Simulate one layout, without and with communication."""
    prices = scalars(price(job, single(layout)))
    return step_of(job, layout, prices)


def pipeline_of(job: Job, layout: PlanLayout, prices: Price) -> float:
    """Seconds of the pipeline with its communication: all that ranking needs beside the prices."""
    if job.cluster.cores:
        step = _on_shared_cores(job, layout, prices)
        rest: float = step.step_s - prices.tail_s - prices.tail_dp_s
        return rest
    return _makespan(job, layout, prices, comm=True)


def step_of(job: Job, layout: PlanLayout, prices: Price, pipeline_s: float | None = None) -> Step:
    """The same, from prices at hand (and what `pipeline_of` made of them)."""
    if job.cluster.cores:
        return _on_shared_cores(job, layout, prices)
    m = int(prices.microbatches)
    whole = _makespan(job, layout, prices, comm=True) if pipeline_s is None else pipeline_s
    bare = _makespan(job, layout, prices, comm=False)
    busy = _busy_s(layout, prices)
    dp_pipeline = 0.0
    if job.profile.overlap_dp:
        dp_pipeline = min(prices.gather_s + prices.reduce_s, max(0.0, whole - bare))
    tail = prices.tail_s + prices.tail_dp_s
    return Step(
        step_s=whole + tail,
        pipeline_s=whole,
        compute_only_s=bare,
        busy_s=busy,
        bubble=max(0.0, bare / busy - 1.0),
        exposed_tp_s=m * layout.vpp * prices.tp_s,
        # without a pipeline the difference is what adding up in another order leaves
        exposed_pp_s=max(0.0, whole - bare - dp_pipeline) if layout.pp > 1 else 0.0,
        exposed_dp_s=dp_pipeline + prices.tail_dp_s + m * layout.vpp * prices.micro_dp_s,
        price=prices,
    )


def _on_shared_cores(job: Job, layout: PlanLayout, prices: Price) -> Step:
    """A step of ranks that share cores: work is conserved, waiting is free for the others.

    Exchanges are core work (copies) unless all ranks share one slower wire.
    """
    cluster = job.cluster
    calm = msgspec.structs.replace(
        cluster, intra=msgspec.structs.replace(cluster.intra, latency_s=0.0),
        inter=msgspec.structs.replace(cluster.inter, latency_s=0.0),
    )  # fmt: skip
    moved = scalars(price(msgspec.structs.replace(job, cluster=calm), single(layout)))
    table, send = durations(prices, layout.pp * layout.vpp), Action(Kind.SEND_F, 0)
    cores, ranks = float(cluster.cores * cluster.nodes), layout.world_size
    link: Resource = "wire" if cluster.intra.shared else "core"

    def exchange(bytes_s: float, whole_s: float) -> list[Phase]:
        late = whole_s - bytes_s  # latency; on a slow wire ranks are woken while bytes still come
        return [Phase(link, bytes_s), Phase("rest", late if link == "core" else late - bytes_s)]

    def phases(action: Action) -> list[Phase]:
        comm = prices.tp_s / 2 if action.kind is not Kind.BACKWARD_WEIGHT else 0.0
        found = exchange(moved.tp_s / 2, comm) if comm else []
        forward = action.kind is Kind.FORWARD
        end = action.chunk == (0 if forward else layout.pp * layout.vpp - 1)
        if layout.pp > 1 and not end and action.kind is not Kind.BACKWARD_WEIGHT:
            found += exchange(moved.send_s, table[send.kind, 0])
        return [*found, Phase("core", max(0.0, table[action.kind, action.chunk] - comm))]

    m = int(prices.microbatches)
    order = _schedule(layout.schedule, layout.pp, layout.vpp, m, False, False, False)
    whole = shared_makespan_s(
        order, phases, width=layout.tp * layout.cp, cores=cores, replicas=layout.dp
    )
    busy = _busy_s(layout, prices)
    crowd = max(1.0, ranks / cores)
    dp = moved.tail_dp_s * (ranks if link == "wire" else crowd)
    dp += prices.tail_dp_s - moved.tail_dp_s
    tail = prices.tail_s * crowd
    return Step(
        step_s=whole + dp + tail, pipeline_s=whole, compute_only_s=whole, busy_s=busy,
        bubble=max(0.0, whole / (busy * crowd) - 1.0), exposed_tp_s=m * layout.vpp * prices.tp_s,
        exposed_pp_s=0.0, exposed_dp_s=dp, price=prices,
    )  # fmt: skip


def scalars(prices: Price) -> Price:
    """Prices of a single layout as plain numbers."""
    return Price(*(float(value) for value in prices))


def durations(prices: Price, chunks: int) -> dict[tuple[Kind, int], float]:
    """Seconds of each kind of action on each chunk."""
    table: dict[tuple[Kind, int], float] = {}
    for chunk in range(chunks):
        first, last = chunk == 0, chunk == chunks - 1
        forward = prices.chunk_f + (prices.embed_f if first else 0) + (prices.head_f if last else 0)
        back = prices.chunk_b + (prices.embed_b if first else 0) + (prices.head_b if last else 0)
        table[Kind.FORWARD, chunk] = forward
        table[Kind.BACKWARD, chunk] = back
        weights = prices.chunk_w + (prices.head_b / 2 if last else 0)
        table[Kind.BACKWARD_WEIGHT, chunk] = min(weights, back)
        table[Kind.BACKWARD_INPUT, chunk] = max(0.0, back - weights)
        table[Kind.SEND_F, chunk] = table[Kind.SEND_B, chunk] = prices.send_s
        table[Kind.UNSHARD, chunk] = prices.gather_s
        table[Kind.REDUCE_GRAD, chunk] = prices.reduce_s
    return table


def _busy_s(layout: PlanLayout, prices: Price) -> float:
    """Compute of the average stage."""
    chunk = layout.pp * layout.vpp * (prices.chunk_f + prices.chunk_b)
    ends = prices.embed_f + prices.embed_b + prices.head_f + prices.head_b
    busy: float = prices.microbatches * (chunk + ends) / layout.pp
    return busy


def _makespan(job: Job, layout: PlanLayout, prices: Price, *, comm: bool) -> float:
    """Length of the pipeline part of a step."""
    m = int(prices.microbatches)
    if layout.pp == 1 and layout.vpp == 1:  # one stage, one chunk: nothing to schedule
        each = prices.chunk_f + prices.chunk_b + prices.embed_f + prices.embed_b
        total: float = m * (each + prices.head_f + prices.head_b)
        return total + (prices.gather_s + prices.reduce_s if comm else 0.0)
    short, long = (rounds * layout.pp for rounds in _ROUNDS)
    even = layout.vpp == 1 or m % layout.pp == 0 or m > _MANY * layout.pp
    if even and m > long:
        a = _simulation(job, layout, prices, short, comm).makespan_s
        b = _simulation(job, layout, prices, long, comm).makespan_s
        return a + (m - short) * (b - a) / (long - short)
    return _simulation(job, layout, prices, m, comm).makespan_s


def _simulation(
    job: Job, layout: PlanLayout, prices: Price, microbatches: int, comm: bool
) -> Simulation:
    table = durations(prices, layout.pp * layout.vpp)
    schedule = _schedule(
        layout.schedule, layout.pp, layout.vpp, microbatches, comm, job.profile.overlap_pp,
        job.profile.overlap_dp,
    )  # fmt: skip
    blocking = comm and not job.profile.overlap_pp
    return simulate(schedule, lambda a: table.get((a.kind, a.chunk), 0.0), blocking=blocking)


@lru_cache(maxsize=256)
def _schedule(
    order: str, pp: int, vpp: int, microbatches: int, comm: bool, overlap_pp: bool,
    overlap_dp: bool,
) -> Schedule:  # fmt: skip
    """The program to simulate; where a shape is not legal, rounded up to full rounds."""
    kind = resolve_kind(order, vpp)
    if legal(kind, pp, vpp, microbatches):
        microbatches = -(-microbatches // pp) * pp
    schedule = build(kind, pp, vpp, microbatches)
    if not comm:
        return schedule
    return add_comm(schedule, overlap_pp=overlap_pp, dp=overlap_dp)


def predicted_events(job: Job, layout: PlanLayout) -> list[Event]:
    """Events of one predicted step in the schema of measured ones: one rank of every stage."""
    prices = scalars(price(job, single(layout)))
    simulation = _simulation(job, layout, prices, int(prices.microbatches), True)
    events: list[Event] = []
    ranks = [stage * layout.tp * layout.dp * layout.cp for stage in range(layout.pp)]
    for stage, rank in enumerate(ranks):
        mine = sorted((s for s in simulation.spans if s.stage == stage), key=lambda s: s.start_s)
        waits = [w for w in simulation.waits if w.stage == stage]
        events.append(_clock(layout, stage, rank))
        rows = [_span_event(span, rank) for span in mine]
        rows += [
            Event(rank=rank, seq=0, step=1, kind="span", name="wait", stream="compute",
                  t_ns=round(w.start_s * 1e9), dur_ns=round((w.end_s - w.start_s) * 1e9),
                  attrs={"on": w.cause})
            for w in waits
        ]  # fmt: skip
        end = simulation.makespan_s
        for name, seconds in (("optimizer", prices.tail_s), ("clip", 0.0)):
            rows.append(
                Event(rank=rank, seq=0, step=1, kind="span", name=name,
                      t_ns=round(end * 1e9), dur_ns=round(seconds * 1e9))
            )  # fmt: skip
        total = end + prices.tail_s + prices.tail_dp_s
        rows.append(
            Event(rank=rank, seq=0, step=1, kind="span", name="step", t_ns=0,
                  dur_ns=round(total * 1e9))
        )  # fmt: skip
        rows.sort(key=lambda e: e.t_ns)
        events += rows
    return _numbered(events)


def _numbered(events: Iterable[Event]) -> list[Event]:
    """Each rank's events counted from zero, as in the file that a rank writes."""
    counts: Counter[int] = Counter()
    numbered = []
    for event in events:
        numbered.append(msgspec.structs.replace(event, seq=counts[event.rank]))
        counts[event.rank] += 1
    return numbered


def _clock(layout: PlanLayout, stage: int, rank: int) -> Event:
    return Event(
        rank=rank, seq=0, kind="instant", name="clock", t_ns=0,
        attrs={
            "wall_ns": 0, "world": layout.world_size, "tp": layout.tp, "pp": layout.pp,
            "dp": layout.dp, "tp_index": 0, "pp_index": stage, "dp_index": 0,
        },
    )  # fmt: skip


_EVENT_NAMES = {
    Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.BACKWARD_INPUT: "backward_input",
    Kind.BACKWARD_WEIGHT: "backward_weight", Kind.SEND_F: "send_f", Kind.RECV_F: "recv_f",
    Kind.SEND_B: "send_b", Kind.RECV_B: "recv_b", Kind.UNSHARD: "unshard",
    Kind.REDUCE_GRAD: "reduce_grad",
}  # fmt: skip


def _span_event(span: Span, rank: int) -> Event:
    action: Action = span.action
    attrs: dict[str, str | int | float | bool | None] = {"chunk": action.chunk}
    if action.microbatch is not None:
        attrs["microbatch"] = action.microbatch
    return Event(
        rank=rank, seq=0, step=1, kind="span", name=_EVENT_NAMES[action.kind], stream=span.lane,
        t_ns=round(span.start_s * 1e9), dur_ns=round((span.end_s - span.start_s) * 1e9),
        attrs=attrs,
    )  # fmt: skip
