"""Prove a schedule before it runs: complete, ordered, matched, free of deadlock; peak activations.

A schedule that passes cannot hang the pipeline by itself: every message has both ends, both ends
of a channel agree on its order (collective libraries pair by order, not by name), and the
simulator reaches the end. `problems` reports everything that is wrong, not the first thing.
"""

from collections import Counter, defaultdict

from engine.errors import LayoutError
from engine.schedule.action import COMPUTE, RECVS, SENDS, Action, Kind
from engine.schedule.comm import source, target
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import simulate


def problems(schedule: Schedule) -> list[str]:
    """Every rule the schedule breaks; empty means it is safe to run."""
    found = _incomplete(schedule)
    for stage in range(schedule.pp):
        found += _disordered(schedule, stage)
    if any(a.kind in SENDS | RECVS for stage in schedule.stages for a in stage):
        found += _unmatched(schedule)
    if not found:
        try:
            simulate(schedule, lambda action: 1.0)
            simulate(schedule, lambda action: 1.0 if action.kind in COMPUTE else 0.0)
        except LayoutError as error:
            found.append(error.what)
    return found


def verify(schedule: Schedule) -> Schedule:
    """The schedule itself; LayoutError with the first problems if it is not safe to run."""
    found = problems(schedule)
    if found:
        raise LayoutError(
            f"unsafe {schedule.kind} schedule: {'; '.join(found[:3])}"
            + (f" and {len(found) - 3} more" if len(found) > 3 else ""),
            remedy="use engine.schedule.build or repair the rewrite that produced it",
        )
    return schedule


def peak_activations(schedule: Schedule, stage: int) -> int:
    """The most (chunk, micro-batch) activations a stage holds at once.

    A forward adds one, the backward (or its weight part) frees it. This is what limits memory:
    min(m, pp - stage) for 1F1B, m for GPipe.
    """
    held = peak = 0
    for action in schedule.stages[stage]:
        if action.kind is Kind.FORWARD:
            held += 1
            peak = max(peak, held)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            held -= 1
    return peak


def _incomplete(schedule: Schedule) -> list[str]:
    """Every chunk runs every micro-batch forward and backward exactly once, on its own stage."""
    found = []
    seen: Counter[Action] = Counter()
    split = any(a.kind is Kind.BACKWARD_INPUT for stage in schedule.stages for a in stage)
    for stage, actions in enumerate(schedule.stages):
        for action in actions:
            if not 0 <= action.chunk < schedule.chunks:
                found.append(f"stage {stage} has {action}, but there are {schedule.chunks} chunks")
            elif schedule.stage_of(action.chunk) != stage:
                home = schedule.stage_of(action.chunk)
                found.append(f"stage {stage} has {action}, whose chunk lives on stage {home}")
            seen[action] += 1
    kinds = [Kind.FORWARD]
    kinds += [Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT] if split else [Kind.BACKWARD]
    expected = {
        Action(kind, chunk, m)
        for kind in kinds
        for chunk in range(schedule.chunks)
        for m in range(schedule.microbatches)
    }
    found += [f"{action} is missing" for action in sorted(expected - set(seen))]
    for kind in (Kind.UNSHARD, Kind.REDUCE_GRAD):  # if one chunk's is there, all must be
        each = {Action(kind, chunk) for chunk in range(schedule.chunks)}
        if each & set(seen):
            found += [f"{action} is missing" for action in sorted(each - set(seen))]
    compute = {a for a in seen if a.kind in COMPUTE}
    found += [f"{action} is not part of the step" for action in sorted(compute - expected)]
    found += [f"{action} occurs {n} times" for action, n in seen.items() if n > 1]
    return found


def _disordered(schedule: Schedule, stage: int) -> list[str]:
    """On one stage: gather and receive before use, forward before backward, send after compute."""
    place = {action: i for i, action in enumerate(schedule.stages[stage])}
    found = []

    def before(early: Action, late: Action) -> None:
        if early in place and late in place and place[early] > place[late]:
            found.append(f"stage {stage}: {late} comes before {early}")

    for action in place:
        chunk, m = action.chunk, action.microbatch
        if action.kind is Kind.FORWARD:
            before(Action(Kind.RECV_F, chunk, m), action)
            before(action, Action(Kind.SEND_F, chunk, m))
            before(Action(Kind.UNSHARD, chunk), action)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            before(Action(Kind.FORWARD, chunk, m), action)
            before(Action(Kind.RECV_B, chunk, m), action)
            before(action, Action(Kind.SEND_B, chunk, m))
            before(action, Action(Kind.BACKWARD_WEIGHT, chunk, m))
        if action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            before(action, Action(Kind.REDUCE_GRAD, chunk))
    return found


def _unmatched(schedule: Schedule) -> list[str]:
    """Each compute has the messages it needs, and both ends of a channel see one order."""
    found = []
    sends: dict[tuple[int, int, str], list[tuple[int, int | None]]] = defaultdict(list)
    receives: dict[tuple[int, int, str], list[tuple[int, int | None]]] = defaultdict(list)
    for stage, actions in enumerate(schedule.stages):
        have = set(actions)
        for action in actions:
            kind, chunk, m = action
            if kind in COMPUTE:
                suffix = "F" if kind is Kind.FORWARD else "B"
                for peer, prefix in (
                    (source(schedule, action), "RECV_"),
                    (target(schedule, action), "SEND_"),
                ):
                    partner = Action(Kind(prefix + suffix), chunk, m)
                    if peer is not None and partner not in have:
                        found.append(f"stage {stage}: {action} has no {partner}")
            elif kind in SENDS:
                step = 1 if kind is Kind.SEND_F else -1
                to = schedule.stage_of(chunk + step) if 0 <= chunk + step < schedule.chunks else -1
                sends[stage, to, kind.value[-1]].append((chunk + step, m))
            elif kind in RECVS:
                step = -1 if kind is Kind.RECV_F else 1
                at = chunk + step
                origin = schedule.stage_of(at) if 0 <= at < schedule.chunks else -1
                receives[origin, stage, kind.value[-1]].append((chunk, m))
    for channel in sorted(set(sends) | set(receives)):
        if sends[channel] != receives[channel]:
            a, b, direction = channel
            found.append(
                f"channel {a}->{b} ({direction}): sent in order {_brief(sends[channel])}, "
                f"received in order {_brief(receives[channel])}"
            )
    return found


def _brief(messages: list[tuple[int, int | None]]) -> str:
    shown = " ".join(f"{chunk}:{m}" for chunk, m in messages[:6])
    return shown + (" ..." if len(messages) > 6 else "")
