"""Hangs of foreign jobs: dumps, heartbeats and stacks joined into one wait-for graph."""

from collections.abc import Iterable, Mapping

import msgspec

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.hang import find_hang
from engine.diagnose.readers.beats import Beat, beat_waits, gone_on_without
from engine.diagnose.readers.flight import Dump
from engine.diagnose.readers.flightwaits import flight_waits, mismatches
from engine.diagnose.readers.job import Job
from engine.diagnose.readers.ras import Ras
from engine.diagnose.readers.stacks import Stack, merge
from engine.diagnose.waits import Waiting

_STACKS_ONLY = 0.7


def states_of(
    job: Job, dumps: Iterable[Dump], beats: Mapping[int, Beat], stacks: Mapping[int, Stack]
) -> dict[int, Waiting]:
    """What every rank stood in, by all that tells it."""
    return join(flight_waits(dumps, job.members), beat_waits(beats, job), stacks)


def hang_findings(
    job: Job, dumps: Iterable[Dump], beats: Mapping[int, Beat], stacks: Mapping[int, Stack]
) -> list[Finding]:
    """What the waits say, with the stack of whoever is stuck as evidence."""
    recorded = tuple(dumps)
    states = states_of(job, recorded, beats, stacks)
    world = set(range(job.world)) | set(states)
    for dump in recorded:
        for _, members in dump.groups.values():
            world |= set(members)
    sources = [
        name
        for name, there in (("dumps", recorded), ("heartbeats", beats), ("stacks", stacks))
        if there
    ]
    found = find_hang(states, world, source=" and ".join(sources)) if states else []
    found = [_with_stacks(finding, stacks) for finding in found]
    if sources == ["stacks"]:  # one look at a job that may have been going on
        sure = [min(_STACKS_ONLY, finding.confidence) for finding in found]
        found = [msgspec.structs.replace(f, confidence=c) for f, c in zip(found, sure, strict=True)]
    differs = mismatches(recorded)
    if any(state.waits_for for state in states.values()):
        found += [_mismatch(recorded, differs[0])] if differs else []
    elif not found:
        other = differs if _is_gloo(recorded) else []
        found += [_mismatch(recorded, other[0])] if other else _behind(recorded)
    return found + _gone(beats)


def join(
    flight: Mapping[int, Waiting], beats: Mapping[int, Waiting], stacks: Mapping[int, Stack]
) -> dict[int, Waiting]:
    """One state a rank: open calls of the dump first, else the heartbeat, else the stack."""
    states: dict[int, Waiting] = {}
    for rank in set(flight) | set(beats) | set(stacks):
        dump, beat, stack = flight.get(rank), beats.get(rank), stacks.get(rank)
        if dump is not None and dump.waits_for:
            state = dump
            if beat is not None and beat.waits_for:
                at = f"{beat.at} ({dump.at})"
                state = dump._replace(at=at, parted_from=beat.parted_from, age_s=beat.age_s)
        elif beat is not None:
            state = beat
        elif dump is not None:
            state = dump
        elif stack is not None:
            state = Waiting(rank, frozenset(), stack.own, 0.0, stack.file)
        else:
            continue
        idle = not state.waits_for and not state.silent and (beat is None or state.lost)
        if idle and stack is not None and stack.in_communication:
            state = state._replace(lost=True, at=str(stack.frames[0]))
        states[rank] = state
    return states if flight or beats else _stack_waits(stacks)


def _with_stacks(finding: Finding, stacks: Mapping[int, Stack]) -> Finding:
    """Add where the culprits stand in their code, and where the others stand."""
    rows = []
    for rank in finding.ranks[:8]:
        stack = stacks.get(rank)
        if stack is not None:
            rows.append(Evidence(file=stack.file, rank=rank, text=f"stack: {stack.own}"))
    if not rows:
        return finding
    here = merge(stacks)
    picture = "; ".join(f"{len(ranks)} at {where}" for where, ranks in list(here.items())[:3])
    return msgspec.structs.replace(
        finding,
        evidence=tuple(rows) + finding.evidence,
        why=f"{finding.why}; stacks: {picture}",
    )


def _stack_waits(stacks: Mapping[int, Stack]) -> dict[int, Waiting]:
    """Stacks alone: who stands in a communication call waits for the few that do not."""
    talking = {rank for rank, stack in stacks.items() if stack.in_communication}
    others = frozenset(stacks) - talking
    few = others if 0 < len(others) <= max(1, len(talking) // 2) else frozenset()
    return {
        rank: Waiting(
            rank, few if rank in talking else frozenset(),
            str(stack.frames[0]) if rank in talking else stack.own, 0.0, stack.file,
            lost=rank in talking and not few,
        )
        for rank, stack in stacks.items()
    }  # fmt: skip


def _is_gloo(dumps: tuple[Dump, ...]) -> bool:
    """gloo closes calls that timed out, and records nothing that only some members call."""
    names = [text for dump in dumps for text in dump.finished.values()]
    return bool(names) and all(name.startswith("gloo:") for name in names)


def _behind(dumps: tuple[Dump, ...]) -> list[Finding]:
    """Nothing is open (gloo closes a call that timed out), but few ranks made fewer calls."""
    counts: dict[str, dict[int, int]] = {}
    for dump in dumps:
        for group, number in dump.enqueued.items():
            counts.setdefault(group, {})[dump.rank] = number
    for group, made in counts.items():
        usual = max(made.values())
        late = tuple(sorted(rank for rank, number in made.items() if number < usual))
        if late and len(made) > 2 and len(late) <= max(1, len(made) // 10):
            text = f"{made[late[0]]} calls in group {group}, {len(made) - len(late)} made {usual}"
            file = next(d.file for d in dumps if d.rank == late[0])
            return [
                Finding(
                    kind="hang", category="rank_blocked", ranks=late, confidence=0.5,
                    source="dumps",
                    what=f"rank {', '.join(map(str, late[:8]))} made fewer calls than all others",
                    why=f"{text}; no call is open, so this may be a matter of moments",
                    evidence=(Evidence(file=file, rank=late[0], text=text),),
                    next=next_step("rank_blocked"),
                )
            ]  # fmt: skip
    return []


def _gone(beats: Mapping[int, Beat]) -> list[Finding]:
    """Ranks that are not heard of any more though the job went on."""
    gone = gone_on_without(beats)
    if not gone:
        return []
    ranks = tuple(sorted(beat.rank for beat in gone))
    last = max(beat.step for beat in beats.values())
    listed = ", ".join(map(str, ranks[:8]))
    return [
        Finding(
            kind="crash", category="crash", ranks=ranks[:64], confidence=0.5, source="heartbeats",
            what=f"rank {listed} fell silent at step {gone[0].step}, others went on to {last}",
            why="the job goes on without it, or only its heartbeats ended",
            evidence=tuple(
                Evidence(file=b.file, rank=b.rank, text=f"last heard at step {b.step} {b.phase}")
                for b in gone[:8]
            ),
            next=next_step("crash"),
        )
    ]  # fmt: skip


def _mismatch(dumps: tuple[Dump, ...], first: tuple[str, int, dict[str, list[int]]]) -> Finding:
    """The first collective that members of a group called by different names or sizes."""
    group, seq, names = first
    ranks = tuple(sorted(sorted(names.values(), key=len)[0]))
    listed = "; ".join(
        f"{what}: rank {', '.join(map(str, who[:8]))}" for what, who in names.items()
    )
    file = next((d.file for d in dumps if d.rank in ranks), "")
    return Finding(
        kind="hang",
        category="desync",
        ranks=ranks,
        confidence=0.9,
        source="dumps",
        what=f"call {seq} of group {group} differs between ranks",
        why=listed[:500],
        evidence=(Evidence(file=file, rank=ranks[0], text=listed[:300]),),
        next=next_step("desync"),
    )


def ras_findings(reports: Iterable[tuple[str, Ras]]) -> list[Finding]:
    """Ranks that RAS shows behind their communicator, and processes that do not answer."""
    found = []
    for file, report in reports:
        for lag in report.lags:
            counts = ", ".join(f"{n} at operation {op}" for op, n in lag.counts)
            category = "rank_blocked" if lag.behind else "unknown_hang"
            found.append(
                Finding(
                    kind="hang",
                    category=category,
                    ranks=lag.behind[:64],
                    nodes=(lag.node,) if lag.node and lag.behind else (),
                    confidence=0.8 if lag.behind else 0.5,
                    source="RAS",
                    what=f"rank {', '.join(map(str, lag.behind[:8]))} is behind in communicator "
                    f"{lag.communicator}"
                    if lag.behind
                    else "ranks of a communicator differ",
                    why=counts,
                    evidence=(Evidence(file=file, line=lag.line, text=counts),),
                    next=next_step(category),
                )
            )
        for node, gpu, line in report.dead:
            found.append(
                Finding(
                    kind="crash",
                    category="crash",
                    nodes=(node,),
                    device=f"GPU {gpu}",
                    confidence=0.7,
                    source="RAS",
                    what=f"a process of GPU {gpu} on {node} is gone",
                    why="it does not answer NCCL's RAS",
                    evidence=(Evidence(file=file, line=line, text=f"{node} GPU {gpu}"),),
                    next=next_step("crash"),
                )
            )
    return found
