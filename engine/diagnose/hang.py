"""Who never arrived: a hang's findings out of the wait-for graph (paper 5.2).

The graph says who; how sure it is depends on how many ranks were seen waiting and on whether
the stuck rank is silent as well. No dump and no heartbeat where the others have one is
evidence, not a gap.
"""

from collections.abc import Iterable, Mapping

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding, RankWait
from engine.diagnose.waits import Graph, Waiting, wait_graph
from engine.units import show_seconds

_NAMED = 16
"""Beyond so many stuck ranks nobody is singled out."""


def find_hang(states: Mapping[int, Waiting], world: Iterable[int], *, source: str) -> list[Finding]:
    """Findings of ranks that stand still; empty if nobody waits.

    states  what is known of each rank; ranks of `world` that are missing in it left no evidence
    source  where the states come from, e.g. `flight recorder`
    """
    members = sorted(set(world) | set(states))
    if not any(state.waits_for for state in states.values()):
        return []
    graph = wait_graph(states, members)
    if any(states[r].parted_from for r in graph.parted):
        return [_parted(graph, states, source)]
    if graph.stuck and len(graph.stuck) <= max(_NAMED, len(members) // 4):
        return [_stuck(graph, states, members, source)]
    if graph.parted and not graph.stuck:
        return [_circle(graph, states, source)]
    return [_nobody(states, members, source)]


def rank_waits(states: Mapping[int, Waiting], *, most: int = 4096) -> tuple[RankWait, ...]:
    """The states as part of a report, the lowest ranks of very many."""
    return tuple(
        RankWait(
            rank=rank,
            at=state.at,
            waits_for=tuple(sorted(state.waits_for)[:32]),
            age_s=state.age_s,
            silent=state.silent,
        )
        for rank, state in sorted(states.items())[:most]
    )


def _stuck(graph: Graph, states: Mapping[int, Waiting], members: list[int], source: str) -> Finding:
    """Sinks: those that most ranks wait for, silent ones first."""
    most = max(graph.reach.values())
    ranks = tuple(r for r in graph.stuck if graph.reach[r] >= 0.2 * most or _is_silent(states, r))
    waiting = sum(1 for state in states.values() if state.waits_for)
    silent = [r for r in ranks if _is_silent(states, r)]
    share = waiting / max(1, len(members) - len(ranks))
    confidence = min(0.97, 0.55 + 0.35 * min(1.0, share) + (0.07 if silent else 0.0))
    rings = " <- ".join(f"{count} ranks" for distance, count in graph.layers if distance)
    why = f"{waiting} of {len(members)} ranks wait, directly or over others, for {_name(ranks)}"
    why += f"; {'they wait' if len(ranks) > 1 else 'it waits'} for nobody"
    if silent:
        why += f"; no dump or heartbeat of {_name(silent)}"
    if rings:
        why += f"; wait-for: {_name(ranks)} <- {rings}"
    spots = [states[r].at for r in ranks if r in states and states[r].at]
    where = f", last seen at {spots[0]}" if spots else ""
    kind_of = "is stuck outside any collective" if len(ranks) == 1 else "are stuck"
    return Finding(
        kind="hang",
        category="rank_blocked",
        ranks=ranks,
        confidence=confidence,
        source=source,
        what=f"{_name(ranks)} {kind_of}{where}",
        why=why,
        evidence=_evidence(ranks, states),
        next=f"look at the stack and the host of {_name(ranks)}, then restart without that node",
    )


def _parted(graph: Graph, states: Mapping[int, Waiting], source: str) -> Finding:
    waiter = next(r for r in graph.parted if states[r].parted_from)
    ahead = sorted(states[waiter].parted_from)
    others = [states[r].at for r in ahead if r in states]
    return Finding(
        kind="hang",
        category="desync",
        ranks=graph.parted,
        confidence=0.85,
        source=source,
        what=f"{_name(graph.parted)} parted: rank {waiter} waits in {states[waiter].at} for "
        f"{_name(ahead)}, which already passed it",
        why=f"{_name(ahead)} now at {others[0] if others else 'a later call'}; "
        f"{len(graph.unplaced)} ranks wait in a circle",
        evidence=_evidence(graph.parted, states),
        next=next_step("desync"),
    )


def _circle(graph: Graph, states: Mapping[int, Waiting], source: str) -> Finding:
    spots = {states[r].at for r in graph.parted}
    if len(spots) == 1:
        return _nobody(states, sorted(states), source)
    chain = ", ".join(f"{r} in {states[r].at}" for r in graph.parted[:6])
    return Finding(
        kind="hang",
        category="desync",
        ranks=graph.parted,
        confidence=0.6,
        source=source,
        what=f"{_name(graph.parted)} wait in a circle: their calls do not match",
        why=chain,
        evidence=_evidence(graph.parted, states),
        next=next_step("desync"),
    )


def _nobody(states: Mapping[int, Waiting], members: list[int], source: str) -> Finding:
    """Everybody is in the same call, or nobody can be told apart."""
    missing = tuple(r for r in members if r not in states)
    spots: dict[str, int] = {}
    for state in states.values():
        if state.waits_for:
            spots[state.at] = spots.get(state.at, 0) + 1
    place = max(spots, key=lambda at: spots[at])
    few = missing if 0 < len(missing) <= _NAMED else ()
    return Finding(
        kind="hang",
        category="unknown_hang",
        ranks=few,
        confidence=0.5,
        source=source,
        what=f"{sum(spots.values())} ranks wait, most of them in {place}; no rank stands out",
        why=f"no evidence of {_name(missing)}"
        if missing
        else "all of them reached the same call: suspect the network or a device inside it",
        evidence=_evidence(sorted(states)[:3], states),
        next=next_step("unknown_hang"),
    )


def _is_silent(states: Mapping[int, Waiting], rank: int) -> bool:
    return rank not in states or states[rank].silent


def _evidence(ranks: Iterable[int], states: Mapping[int, Waiting]) -> tuple[Evidence, ...]:
    rows = []
    for rank in list(ranks)[:_NAMED]:
        state = states.get(rank)
        text = "left no dump and no heartbeat" if state is None else f"{state.at}"
        if state is not None and state.age_s:
            text += f", since {show_seconds(state.age_s)}"
        rows.append(Evidence(file=state.file if state else "", rank=rank, text=text))
    return tuple(rows)


def _name(ranks: Iterable[int]) -> str:
    """`rank 5`, `ranks 4, 5`, or the first of many."""
    listed = list(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) <= 8:
        return "ranks " + ", ".join(map(str, listed))
    return f"{len(listed)} ranks ({', '.join(map(str, listed[:6]))}, ...)"
