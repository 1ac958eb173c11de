"""What is done about a fault: evict, take a spare, shrink, wait, bisect, or end the run.

Pure and without a clock of its own, so that the driver of a job and the simulation of months decide
alike. The rules, in order (paper 4.1; where the paper is silent, ours):

1. A wrong input ends the run, so does an exception before anything was ever done. After steps were
   made, what stops a later start is a fault like any other: a node may lack what the others have.
2. The budget of restarts, and of the same fault at the same step, ends it with a report; before
   the last of those, all nodes are tested against each other.
3. A node that is lost, or failed its check, leaves. One that the verdict names surely, that
   computed other numbers than its replicas, or on which ranks die for the second time, leaves if
   there is something to replace it.
4. Places are filled from spares, then by whoever can start nodes, else by the recipe's choice.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.job.incident import Decision, Incident
from engine.spec.job import JobSpec

SURE = 0.8
"""Confidence from which a verdict alone evicts."""
WINDOW_S = 1800.0
"""Ranks that die on one node twice within this time speak against the node."""


class Fleet(NamedTuple):
    """The nodes of a job as the policy needs them."""

    carrying: tuple[str, ...]
    """Nodes that carried ranks, in order of their ranks."""
    lost: frozenset[str]
    unfit: Mapping[str, str]
    """Node -> what its self-check failed with."""
    spares: tuple[str, ...]
    """Ready nodes that carry none and passed their check."""
    can_start: int = 0
    """Nodes that can be had anew within seconds (on one machine: any number)."""


def decide(
    incident: Incident, history: Sequence[Incident], fleet: Fleet, job: JobSpec, *,
    bisected: bool = False,
) -> Decision:  # fmt: skip
    """The answer to an incident.

    history   earlier incidents of this invocation, oldest first
    bisected  nodes have been tested against each other for this fault already
    """
    end = _end(incident, history, job)
    if end:
        return Decision(kind="stop", why=end)
    alike = _alike(incident, history)
    evict = _to_evict(incident, history, fleet)
    if alike + 1 >= job.repeats and not evict and not bisected and len(fleet.carrying) > 1:
        return Decision(
            kind="bisect", why=f"the same fault for the {alike + 1}. time, no node named"
        )
    skip = -1
    if incident.kind in ("numbers", "spike") and alike:
        skip = incident.step
    return _fill(incident, evict, fleet, job, skip)


def _end(incident: Incident, history: Sequence[Incident], job: JobSpec) -> str:
    """Why there is no restart; empty if there is one."""
    if incident.kind == "input":
        return "a restart would meet the same input"
    if len(history) >= job.restarts:
        return f"job.restarts = {job.restarts} are used up"
    if incident.kind == "numbers" and job.bad_numbers == "stop":
        return "job.bad_numbers = stop"
    row = _bad_in_a_row(incident, history)
    if row >= job.repeats:
        return f"numbers were bad at {row} steps in a row, which is no fault of one batch"
    alike = _alike(incident, history)
    if alike >= job.repeats:
        return f"the same fault came {alike + 1} times at step {incident.step}"
    if incident.kind == "bug" and incident.step < 0 and not history:
        return "an exception before the first step is no matter of chance"
    return ""


def _alike(incident: Incident, history: Sequence[Incident]) -> int:
    """How many of the last incidents were this one, without a step between them."""
    count = 0
    for earlier in reversed(history):
        if earlier.signature != incident.signature or earlier.step != incident.step:
            break
        count += 1
    return count


def _bad_in_a_row(incident: Incident, history: Sequence[Incident]) -> int:
    """Neighbouring steps with bad numbers, this one the last: leaving them out would not end."""
    steps = {earlier.step for earlier in history if earlier.kind == "numbers"}
    count, step = int(incident.kind == "numbers"), incident.step - 1
    while count and step in steps:
        count, step = count + 1, step - 1
    return count


def _to_evict(
    incident: Incident, history: Sequence[Incident], fleet: Fleet
) -> dict[str, str]:  # fmt: skip
    """Nodes that have to leave, and why."""
    out = {node: "is lost" for node in fleet.carrying if node in fleet.lost}
    out |= {n: f"failed its check: {why}" for n, why in fleet.unfit.items() if n in fleet.carrying}
    room = len(fleet.spares) + fleet.can_start - len(out)
    if incident.kind not in ("crash", "hang", "start", "slow", "corruption"):
        return out  # a bug, bad data and a wrong input are no node's fault
    for node in incident.nodes:
        if node in out or node not in fleet.carrying or len(incident.nodes) > 1 or room <= 0:
            continue
        sure = incident.confidence >= SURE
        if incident.kind in ("hang", "slow") and sure and fleet.spares:
            out[node] = "is named by the verdict"
        elif incident.kind == "corruption" and sure:
            out[node] = "computed wrong numbers"
        elif _before(node, incident, history):
            out[node] = "had ranks die for the second time"
    if incident.kind == "corruption" and room > 0 and not out.keys() & {*incident.nodes}:
        out |= _suspect(incident, history)
    return out


def _suspect(incident: Incident, history: Sequence[Incident]) -> dict[str, str]:
    """Of nodes that differ without a majority, the one that did before; else any of them.

    A node that is left is with another one then: if the two differ again, it is this one.
    """
    earlier = {node for one in history if one.kind == "corruption" for node in one.nodes}
    twice = [node for node in incident.nodes if node in earlier]
    return {n: "computed other numbers than its replica" for n in (twice or incident.nodes)[:1]}


def _before(node: str, incident: Incident, history: Sequence[Incident]) -> bool:
    """Whether this node alone was named before, lately."""
    return any(
        node in earlier.nodes and len(earlier.nodes) == 1
        and earlier.kind in ("crash", "hang", "start", "corruption")
        and incident.time_s - earlier.time_s <= WINDOW_S
        for earlier in history
    )  # fmt: skip


def _fill(
    incident: Incident, evict: dict[str, str], fleet: Fleet, job: JobSpec, skip: int
) -> Decision:
    """Fill the places of those that leave."""
    why = "; ".join(f"{node} {reason}" for node, reason in evict.items()) or incident.what
    gone = tuple(evict)
    take = fleet.spares[: len(gone)]
    missing = len(gone) - len(take) - fleet.can_start
    if missing <= 0:
        return Decision(kind="restart", why=why, evict=gone, take=take, skip_step=skip)
    if job.without_spare == "stop":
        return Decision(kind="stop", why=f"{why}; {missing} nodes are missing", evict=gone)
    kind = job.without_spare
    return Decision(kind=kind, why=why, evict=gone, take=take, skip_step=skip)
