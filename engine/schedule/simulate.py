"""Run a schedule against durations and say when every action happens.

Each stage has lanes that work in order: compute, one per pipeline direction, and one for
data-parallel traffic. Sends and receives start transfers without holding up compute; a compute
action waits for the message or the parameters it needs, and that wait is what "exposed" means.
`plan` supplies durations from its cost model, `diagnose` from measured events.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from engine.errors import LayoutError
from engine.schedule.action import COMPUTE, RECVS, SENDS, Action, Kind
from engine.schedule.comm import source
from engine.schedule.schedule import Schedule

LANES = {
    Kind.SEND_F: "pp_f",
    Kind.RECV_F: "pp_f",
    Kind.SEND_B: "pp_b",
    Kind.RECV_B: "pp_b",
    Kind.UNSHARD: "dp_gather",
    Kind.REDUCE_GRAD: "dp_reduce",
}
"""The lane of each communication; everything else is `compute`."""


class Span(NamedTuple):
    """One action of one stage on one lane, in seconds from the start of the step."""

    stage: int
    lane: str
    action: Action
    start_s: float
    end_s: float


class Wait(NamedTuple):
    """Time the compute lane stood still before `action`; cause: `pp_f`, `dp_gather`, `order` ..."""

    stage: int
    action: Action
    cause: str
    start_s: float
    end_s: float


class Simulation(NamedTuple):
    """All spans and waits of a step, and its length."""

    spans: list[Span]
    waits: list[Wait]
    makespan_s: float

    def busy_s(self, stage: int) -> float:
        """Seconds a stage computes."""
        mine = (s for s in self.spans if s.stage == stage and s.lane == "compute")
        return sum(s.end_s - s.start_s for s in mine)

    def bubble(self) -> float:
        """Idle compute time over busy compute time, averaged over the stages."""
        stages = {s.stage for s in self.spans}
        busy = sum(self.busy_s(stage) for stage in stages)
        return (len(stages) * self.makespan_s - busy) / busy if busy else 0.0


class _Stage:
    """Progress of one stage: position in its program, clock and when each lane is free."""

    def __init__(self) -> None:
        self.position = 0
        self.clock_s = 0.0
        self.free_s: dict[str, float] = {}


class _State:
    """What has happened so far in the whole pipeline."""

    def __init__(self, schedule: Schedule, lanes: Mapping[Kind, str]) -> None:
        self.lanes = lanes
        self.stages = [_Stage() for _ in range(schedule.pp)]
        self.done: dict[Action, float] = {}
        self.posted: dict[Action, float] = {}
        self.arrived: dict[Action, float] = {}
        self.spans: list[Span] = []
        self.waits: list[Wait] = []


def simulate(
    schedule: Schedule,
    duration_s: Callable[[Action], float],
    *,
    blocking: bool = False,
    lanes: Mapping[Kind, str] = LANES,
) -> Simulation:
    """When every action of a schedule runs, given how long each takes.

    duration_s gives seconds of compute, of a transfer (asked for the SEND), a gather or a
    reduction. A schedule without communication actions is run with messages that take no time.
    blocking=True makes a stage wait for each transfer it starts (the coupled baseline). lanes says
    which transfers of a stage queue behind each other: one lane for all is a single slow link.
    Raises LayoutError if the schedule deadlocks.
    """
    state = _State(schedule, lanes)
    explicit = any(a.kind in SENDS for stage in schedule.stages for a in stage)
    waiting = deque(range(schedule.pp))
    stuck = 0
    while waiting:
        stage = waiting.popleft()
        before = state.stages[stage].position
        while _advance(state, schedule, stage, duration_s, explicit, blocking):
            pass
        if state.stages[stage].position < len(schedule.stages[stage]):
            waiting.append(stage)
        stuck = 0 if state.stages[stage].position > before else stuck + 1
        if waiting and stuck > len(waiting):
            raise _deadlock(state, schedule)
    makespan = max((s.end_s for s in state.spans), default=0.0)
    return Simulation(state.spans, state.waits, makespan)


def _advance(
    state: _State,
    schedule: Schedule,
    stage: int,
    duration_s: Callable[[Action], float],
    explicit: bool,
    blocking: bool,
) -> bool:
    """Run the next action of a stage if what it needs is known; True if it ran."""
    me = state.stages[stage]
    program = schedule.stages[stage]
    if me.position == len(program):
        return False
    action = program[me.position]
    if action.kind in COMPUTE:
        ready = _inputs_ready(state, schedule, action, explicit)
        if ready is None:
            return False
        at_s, cause = ready
        if at_s > me.clock_s:
            state.waits.append(Wait(stage, action, cause, me.clock_s, at_s))
        start = max(me.clock_s, at_s)
        me.clock_s = start + duration_s(action)
        state.spans.append(Span(stage, "compute", action, start, me.clock_s))
        state.done[action] = me.clock_s
    elif action.kind in RECVS:
        state.posted[action] = me.clock_s
        if blocking:
            sent = state.arrived.get(_sender(action))
            if sent is None:
                return False
            me.clock_s = max(me.clock_s, sent)
    else:
        end = _start_transfer(state, stage, action, duration_s)
        if end is None:
            return False
        if blocking:
            me.clock_s = max(me.clock_s, end)
    me.position += 1
    return True


def _start_transfer(
    state: _State, stage: int, action: Action, duration_s: Callable[[Action], float]
) -> float | None:
    """Occupy a lane with a send, gather or reduction; when it ends, or None if not startable."""
    me = state.stages[stage]
    lane = state.lanes[action.kind]
    start = max(me.clock_s, me.free_s.get(lane, 0.0))
    end = start + duration_s(action)
    me.free_s[lane] = end
    state.spans.append(Span(stage, lane, action, start, end))
    if action.kind in SENDS:
        state.arrived[action] = end
    else:
        state.done[action] = end
    return end


def _sender(receive: Action) -> Action:
    """The SEND whose message a RECV takes: the neighbouring chunk's."""
    if receive.kind is Kind.RECV_F:
        return Action(Kind.SEND_F, receive.chunk - 1, receive.microbatch)
    return Action(Kind.SEND_B, receive.chunk + 1, receive.microbatch)


def _inputs_ready(
    state: _State, schedule: Schedule, action: Action, explicit: bool
) -> tuple[float, str] | None:
    """When the inputs of a compute action are there and what came last; None if not yet known."""
    needs: list[tuple[float, str]] = [(0.0, "order")]
    chunk, microbatch = action.chunk, action.microbatch
    if action.kind is Kind.FORWARD:
        previous = Action(Kind.FORWARD, chunk - 1, microbatch) if chunk else None
        direction = "pp_f"
        needs.append((state.done.get(Action(Kind.UNSHARD, chunk), 0.0), "dp_gather"))
    elif action.kind is Kind.BACKWARD_WEIGHT:
        previous, direction = Action(Kind.BACKWARD_INPUT, chunk, microbatch), "order"
    else:
        last = chunk == schedule.chunks - 1
        previous = None if last else Action(action.kind, chunk + 1, microbatch)
        direction = "pp_b"
        forward = state.done.get(Action(Kind.FORWARD, chunk, microbatch))
        if forward is None:
            return None
        needs.append((forward, "order"))
    if previous is not None:
        at = _message(state, schedule, action, previous, explicit)
        if at is None:
            return None
        needs.append((at, direction))
    return max(needs)


def _message(
    state: _State, schedule: Schedule, action: Action, previous: Action, explicit: bool
) -> float | None:
    """When the result of `previous` reaches the stage of `action`."""
    if not explicit or source(schedule, action) is None:
        return state.done.get(previous)
    kind = Kind.RECV_F if action.kind is Kind.FORWARD else Kind.RECV_B
    receive = Action(kind, action.chunk, action.microbatch)
    if receive not in state.posted:
        return None
    return state.arrived.get(_sender(receive))


def _deadlock(state: _State, schedule: Schedule) -> LayoutError:
    stuck = [
        f"stage {i} before {schedule.stages[i][s.position]}"
        for i, s in enumerate(state.stages)
        if s.position < len(schedule.stages[i])
    ]
    return LayoutError(
        f"the {schedule.kind} schedule deadlocks: {', '.join(stuck)}",
        remedy="check the schedule with engine.schedule.verify; it names what is unmatched",
    )
