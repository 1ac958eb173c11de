"""A pipeline whose ranks share a machine's cores, or one wire: who waits lets others run.

With more ranks than cores a bubble costs nothing, because another rank computes meanwhile; fixed
durations cannot say that. Here every action is a few phases of work, and all phases that are open
share what there is: `core` work the cores, `wire` work one link, `rest` nothing (latency).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from engine.schedule.action import Action, Kind
from engine.schedule.schedule import Schedule

Resource = Literal["core", "wire", "rest"]
_DONE = 1e-12


class Friction(NamedTuple):
    """What sharing costs, as shares of the work."""

    beside: float
    """A second busy core slows the first: they share memory, and often a physical core."""
    turns: float
    """Ranks that take turns on a core each find its cache cold."""


MEASURED = Friction(beside=0.09, turns=0.09)
"""From `bench/plan/own.py`: compute of one, two and eight ranks took 1.30, 1.42, 1.55 s a step."""


class Phase(NamedTuple):
    """Seconds of a resource, were a rank alone on the machine."""

    on: Resource
    seconds: float


class _Stage:
    """Where a stage is in its program, and what is left of its current action."""

    def __init__(self, actions: tuple[Action, ...]) -> None:
        self.actions = actions
        self.position = 0
        self.left: list[Phase] = []

    @property
    def action(self) -> Action | None:
        return self.actions[self.position] if self.position < len(self.actions) else None


def shared_makespan_s(
    schedule: Schedule, phases: Callable[[Action], list[Phase]], *, width: int, cores: float,
    replicas: int = 1, friction: Friction = MEASURED,
) -> float:  # fmt: skip
    """Seconds of a compute-only schedule run by all replicas at once, on `cores` cores.

    `width` ranks of a stage and replica work in step. Replicas do not: they start a part of an
    action apart, so that one computes while another waits, as processes do.
    """
    first = sum(p.seconds for p in phases(schedule.stages[0][0]))
    pipelines = [_Pipeline(schedule, delay_s=first * index / replicas) for index in range(replicas)]
    now = 0.0
    while True:
        for pipeline in pipelines:
            pipeline.start_what_is_ready(phases)
        open_ = [stage for pipeline in pipelines for stage in pipeline.stages if stage.left]
        if not open_:
            return now
        rates = _rates(open_, width, cores, friction)
        step = min(s.left[0].seconds / rates[s.left[0].on] for s in open_)
        now += step
        for pipeline in pipelines:
            pipeline.advance(step, rates)


class _Pipeline:
    """One replica: its stages and what they have done."""

    def __init__(self, schedule: Schedule, *, delay_s: float) -> None:
        self.schedule = schedule
        self.stages = [_Stage(actions) for actions in schedule.stages]
        self.done: set[Action] = set()
        self._delay_s = delay_s

    def start_what_is_ready(self, phases: Callable[[Action], list[Phase]]) -> None:
        """Give idle stages their next action's phases if its inputs are there."""
        for stage in self.stages:
            action = stage.action
            if stage.left or action is None or not _ready(self.schedule, action, self.done):
                continue
            work = [p for p in phases(action) if p.seconds > 0] or [Phase("rest", _DONE)]
            stage.left = [Phase("rest", self._delay_s), *work] if self._delay_s else work
            self._delay_s = 0.0

    def advance(self, step_s: float, rates: dict[Resource, float]) -> None:
        """Let time pass."""
        for stage in self.stages:
            if not stage.left:
                continue
            head = stage.left[0]
            rest = head.seconds - step_s * rates[head.on]
            if rest > _DONE:
                stage.left[0] = Phase(head.on, rest)
                continue
            stage.left.pop(0)
            if not stage.left:
                self.done.add(stage.actions[stage.position])
                stage.position += 1


def _rates(
    open_: list[_Stage], width: int, cores: float, friction: Friction
) -> dict[Resource, float]:
    """Speed of each resource's work against that of a rank alone."""
    busy = {on: width * sum(s.left[0].on == on for s in open_) for on in ("core", "wire")}
    beside = min(1.0, max(0.0, min(cores, busy["core"]) - 1.0))
    taking_turns = min(1.0, max(0.0, busy["core"] / cores - 1.0))
    slowed = 1.0 + friction.beside * beside + friction.turns * taking_turns
    return {
        "core": min(1.0, cores / max(1, busy["core"])) / slowed,
        "wire": 1.0 / max(1, busy["wire"]),
        "rest": 1.0,
    }


def _ready(schedule: Schedule, action: Action, done: set[Action]) -> bool:
    """Whether what the action needs has been computed."""
    chunk, microbatch = action.chunk, action.microbatch
    if action.kind is Kind.FORWARD:
        return chunk == 0 or Action(Kind.FORWARD, chunk - 1, microbatch) in done
    if action.kind is Kind.BACKWARD_WEIGHT:
        return Action(Kind.BACKWARD_INPUT, chunk, microbatch) in done
    if Action(Kind.FORWARD, chunk, microbatch) not in done:
        return False
    last = chunk == schedule.chunks - 1
    return last or Action(action.kind, chunk + 1, microbatch) in done
