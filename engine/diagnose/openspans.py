"""What the ranks of our own run were in the middle of: open spans as waits.

The watchdog of a run writes what is open on every rank. The innermost open span says whether
the rank waits and for whom: a pipeline wait for the neighbouring chunk's rank, a data-parallel
wait for its replicas, a tensor-parallel collective for its group. A rank without such a span
works by itself.
"""

from engine.diagnose.eventlines import Line
from engine.diagnose.load import Spans, Tail
from engine.diagnose.waits import Waiting
from engine.spec.layout import Coord, ParallelLayout

_SILENT_S = 1.0
"""A rank is silent if its last line is this much older than the others' dumps."""


def open_waits(spans: Spans) -> dict[int, Waiting]:
    """Rank -> what it waits for; empty if no rank has dumped open spans."""
    dumped = {rank: tail for rank, tail in spans.tails.items() if tail.open}
    if not dumped:
        return {}
    newest = max(tail.last_wall_ns for tail in dumped.values())
    states = {}
    for rank, tail in spans.tails.items():
        if tail.open:
            states[rank] = _waiting(tail, spans)
        elif not tail.ended:
            age = (newest - tail.last_wall_ns) / 1e9
            states[rank] = Waiting(
                rank, frozenset(), f"step {tail.last_step} after {tail.last_name or 'start'}",
                age, tail.file, silent=age > _SILENT_S,
            )  # fmt: skip
    return _drop_equals(states, spans)


def _waiting(tail: Tail, spans: Spans) -> Waiting:
    inner = max(tail.open, key=lambda line: line.t_ns)
    on = _waits_on(inner)
    targets = _targets(inner, on, tail.coord, spans.layout) if on else frozenset()
    where = f"step {inner.step} {inner.name}" if inner.step >= 0 else _of_start(tail.open)
    if inner.attrs.get("on"):
        where += f" on {inner.attrs['on']}"
    for key in ("chunk", "microbatch"):
        if inner.attrs.get(key) is not None:
            where += f" {key} {inner.attrs[key]}"
    return Waiting(tail.rank, targets, where, inner.dur_ns / 1e9, tail.file)


def _of_start(opened: tuple[Line, ...]) -> str:
    """`start resume`, and what it is in the middle of there."""
    outer, inner = opened[0], max(opened, key=lambda line: line.t_ns)
    phase = f"{outer.name} {outer.attrs.get('phase', '')}".strip()
    return phase if inner is outer else f"{phase}, {inner.name}"


def _waits_on(line: Line) -> str:
    """pp_f, pp_b, dp, tp, world or nothing (own work)."""
    if line.name == "start":
        return "world" if line.attrs.get("phase") == "meet" else ""
    if line.name == "wait":
        on = str(line.attrs.get("on", ""))
        return on if on.startswith("pp") else on[:2]
    direct = {
        "tp_comm": "tp", "recv_f": "pp_f", "recv_b": "pp_b", "send_f": "pp_b", "send_b": "pp_f",
        "unshard": "dp", "reduce_grad": "dp", "tied": "pp_ends", "clip": "world",
    }  # fmt: skip
    return direct.get(line.name, "")


def _targets(line: Line, on: str, at: Coord, layout: ParallelLayout) -> frozenset[int]:
    """Ranks that have to arrive for this wait to end."""
    if on == "world":
        return frozenset(range(layout.world_size))
    if on in ("tp", "dp"):
        return frozenset(layout.group("tp" if on == "tp" else "dp", layout.rank(at)))
    if on == "pp_ends":
        return frozenset(
            {layout.rank(at._replace(pp=0)), layout.rank(at._replace(pp=layout.pp - 1))}
        )
    if on.startswith("pp"):
        step = -1 if on == "pp_f" else 1
        return frozenset({layout.rank(at._replace(pp=(at.pp + step) % layout.pp))})
    return frozenset(range(layout.world_size)) if line.name == "wait" else frozenset()


def _drop_equals(states: dict[int, Waiting], spans: Spans) -> dict[int, Waiting]:
    """Members that stand in the same call of the same group do not wait for one another.

    A member that is already in a later step has passed this call: the ranks parted.
    """
    step = {r: max((o.step for o in t.open), default=t.last_step) for r, t in spans.tails.items()}
    kept = {}
    for rank, state in states.items():
        peers = {r for r in state.waits_for if r != rank}
        if rank not in state.waits_for:  # point to point
            kept[rank] = state._replace(waits_for=frozenset(peers))
            continue
        same = {r for r in peers if r in states and states[r].at == state.at}
        passed = frozenset(r for r in peers - same if step.get(r, -1) > step[rank])
        kept[rank] = state._replace(waits_for=frozenset(peers - same or peers), parted_from=passed)
    return kept
