"""Rewrite: add sends, receives, parameter gathers and gradient reductions to a compute schedule.

Sends and receives are separate actions that only *start* a transfer; the compute action that needs
the data waits for it (paper 3.2, Figure 4). With overlap a receive stands some compute actions
ahead of its use (a message travels once both ends have spoken) and a chunk's gather ahead of the
previous chunk's first forward; without, right before their use.
"""

from engine.schedule.action import SENDS, Action, Kind
from engine.schedule.schedule import Schedule


def add_comm(
    schedule: Schedule,
    *,
    overlap_pp: bool = True,
    overlap_dp: bool = True,
    dp: bool = True,
    ahead: int = 1,
) -> Schedule:
    """The program a stage executes: compute plus the communication it needs.

    ahead: compute actions by which receives are posted early; each of them holds a message.
    dp=False leaves out gathers and reductions (one replica, nothing sharded).
    """
    stages = []
    for stage in range(schedule.pp):
        actions = _with_p2p(schedule, stage, ahead=ahead if overlap_pp else 0)
        if dp:
            actions = _with_dp(schedule, stage, actions, overlap=overlap_dp)
        stages.append(actions)
    return schedule.with_stages(stages)


def forward_only(schedule: Schedule) -> Schedule:
    """The forward half of a program, in the same order: what validation runs."""
    keep = (Kind.FORWARD, Kind.SEND_F, Kind.RECV_F, Kind.UNSHARD)
    return schedule.with_stages([a for a in stage if a.kind in keep] for stage in schedule.stages)


def source(schedule: Schedule, action: Action) -> int | None:
    """The stage whose message a forward or backward waits for; None if its input is local."""
    if action.kind is Kind.FORWARD:
        neighbour = action.chunk - 1
    elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        neighbour = action.chunk + 1
    else:
        return None
    return _remote(schedule, action.chunk, neighbour)


def target(schedule: Schedule, action: Action) -> int | None:
    """The stage that needs the result of a forward or backward; None if it stays here."""
    if action.kind is Kind.FORWARD:
        neighbour = action.chunk + 1
    elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        neighbour = action.chunk - 1
    else:
        return None
    return _remote(schedule, action.chunk, neighbour)


def _remote(schedule: Schedule, chunk: int, neighbour: int) -> int | None:
    if not 0 <= neighbour < schedule.chunks:
        return None
    other = schedule.stage_of(neighbour)
    return None if other == schedule.stage_of(chunk) else other


def _with_p2p(schedule: Schedule, stage: int, *, ahead: int) -> list[Action]:
    """Place each receive `ahead` compute actions early and each send right after its compute."""
    compute = schedule.stages[stage]
    slots: list[list[Action]] = [[] for _ in compute]
    for position, action in enumerate(compute):
        if source(schedule, action) is not None:
            kind = Kind.RECV_F if action.kind is Kind.FORWARD else Kind.RECV_B
            receive = Action(kind, action.chunk, action.microbatch)
            slots[max(0, position - ahead)].append(receive)
    program: list[Action] = []
    for action, receives in zip(compute, slots, strict=True):
        program += [*receives, action]
        if target(schedule, action) is not None:
            kind = Kind.SEND_F if action.kind is Kind.FORWARD else Kind.SEND_B
            program.append(Action(kind, action.chunk, action.microbatch))
    return program


def _with_dp(
    schedule: Schedule, stage: int, actions: list[Action], *, overlap: bool
) -> list[Action]:
    """Gather each chunk before its first forward, reduce it after its last backward."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, action in enumerate(actions):
        if action.kind is Kind.FORWARD:
            first.setdefault(action.chunk, position)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            last[action.chunk] = position
    order = sorted(first, key=lambda chunk: first[chunk])
    before: dict[int, list[Action]] = {}
    for index, chunk in enumerate(order):
        slot = first[chunk]
        if overlap:
            slot = 0 if index == 0 else first[order[index - 1]]
        before.setdefault(slot, []).append(Action(Kind.UNSHARD, chunk))
    program: list[Action] = []
    due: list[Action] = []
    for position, action in enumerate(actions):
        if overlap and action.kind not in SENDS:  # the neighbour waits for the send: it goes first
            program, due = program + due, []
        program += [*before.get(position, []), action]
        if last.get(action.chunk) == position:
            due.append(Action(Kind.REDUCE_GRAD, action.chunk))
    return program + due
