"""The wait-for graph over ranks: who waits for whom, for nobody, or in a circle.

A sink that others wait for is the rank that is stuck. A circle without a sink means that ranks
parted in what they call: the first group in which one member waits where another has already
passed is named. Edges come from whatever tells them: open spans, flight-recorder dumps,
heartbeats (hang.py).
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Waiting(NamedTuple):
    """What one rank is known to do: wait for others, work, or nothing at all."""

    rank: int
    waits_for: frozenset[int]
    at: str
    """What it stands in, e.g. `step 6 tp_allreduce microbatch 0`."""
    age_s: float = 0.0
    file: str = ""
    silent: bool = False
    """No dump and no heartbeat where others have one: this is evidence."""
    parted_from: frozenset[int] = frozenset()
    """Members of the group it waits in that have already passed this point."""
    lost: bool = False
    """It waits, but the input does not tell for whom: no culprit, no edge."""


class Graph(NamedTuple):
    """What the waits say."""

    stuck: tuple[int, ...]
    """Sinks: others wait for them, they wait for nobody."""
    parted: tuple[int, ...]
    """Ranks of the first circle whose calls do not match; empty if there is a sink."""
    reach: dict[int, int]
    """Stuck rank -> how many ranks wait for it, directly or over others."""
    layers: tuple[tuple[int, int], ...]
    """(distance from the stuck ranks, ranks at that distance)."""
    unplaced: tuple[int, ...]
    """Waiting ranks whose chain ends nowhere."""


def wait_graph(states: Mapping[int, Waiting], world: Iterable[int]) -> Graph:
    """Find sinks and circles; ranks of `world` without a state count as waiting for nobody."""
    members = sorted(set(world) | set(states))
    waits = {r: _edges(states.get(r), members) for r in members}
    waited_by: dict[int, set[int]] = defaultdict(set)
    for rank, targets in waits.items():
        for target in targets:
            waited_by[target].add(rank)
    lost = {r for r, state in states.items() if state.lost}
    sinks = [r for r in members if not waits[r] and waited_by[r] and r not in lost]
    reach = {sink: len(_upstream(sink, waited_by)) for sink in sinks}
    distance = _distances(sinks, waited_by)
    rings: dict[int, int] = defaultdict(int)
    for steps in distance.values():
        rings[steps] += 1
    unplaced = tuple(r for r in members if waits[r] and r not in distance)
    parted = _parted(states, unplaced, waits)
    return Graph(tuple(sinks), parted, reach, tuple(sorted(rings.items())), unplaced)


def _edges(state: Waiting | None, members: list[int]) -> frozenset[int]:
    if state is None:
        return frozenset()
    return frozenset(r for r in state.waits_for if r != state.rank)


def _upstream(start: int, waited_by: Mapping[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    queue = deque([start])
    while queue:
        for rank in waited_by.get(queue.popleft(), ()):
            if rank not in seen and rank != start:
                seen.add(rank)
                queue.append(rank)
    return seen


def _distances(sinks: list[int], waited_by: Mapping[int, set[int]]) -> dict[int, int]:
    distance = dict.fromkeys(sinks, 0)
    queue = deque(sinks)
    while queue:
        rank = queue.popleft()
        for other in waited_by.get(rank, ()):
            if other not in distance:
                distance[other] = distance[rank] + 1
                queue.append(other)
    return distance


def _parted(
    states: Mapping[int, Waiting],
    unplaced: tuple[int, ...],
    waits: Mapping[int, frozenset[int]],
) -> tuple[int, ...]:
    """The ranks whose calls parted: who waits for a member that has gone past, and it."""
    passed = [r for r in sorted(states) if states[r].parted_from]
    if passed:
        oldest = max(passed, key=lambda r: (states[r].age_s, -r))
        return tuple(sorted({oldest, *states[oldest].parted_from}))
    if not unplaced:
        return ()
    circle = _circle(unplaced, waits)
    return tuple(sorted(circle))


def _circle(unplaced: tuple[int, ...], waits: Mapping[int, frozenset[int]]) -> list[int]:
    """One circle among ranks that all wait."""
    seen: list[int] = []
    rank = unplaced[0]
    inside = set(unplaced)
    while rank not in seen:
        seen.append(rank)
        following = sorted(r for r in waits[rank] if r in inside)
        if not following:
            return []
        rank = following[0]
    return seen[seen.index(rank) :]
