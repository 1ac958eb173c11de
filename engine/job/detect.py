"""When something is wrong that no exit code tells: a hang, a silent node, a loss that jumps.

Pure: fed with what beats say and with the driver's own monotonic clock, asked for a judgement.
Deadlines are learnt from the job's own steps; nothing here compares clocks of two machines.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.health.heartbeat import Health, RankBeat
from engine.spec.job import JobSpec

_KEPT = 64
_LEARNT = 3
"""Steps after which a job's pace is known."""
_QUIET_S = 2.0
"""A step that is late but in which spans still begin and end is slow, not hung, ..."""
_PATIENCE = 6.0
"""... until it is so many times late."""
_PROOF_STEPS = 3.0
_SECTIONS = ("eval", "checkpoint")
"""Spans as long as they need to be, while something moves in them."""
_TALKING = frozenset(
    {"wait", "tp_comm", "recv_f", "send_f", "recv_b", "send_b", "unshard", "reduce_grad", "tied",
     "clip"}
)  # fmt: skip
"""Spans in which a rank waits for others or for the network."""
_DUMB = ("stopped", "silent")
_STALL = 2.0
"""All ranks wait and none is stopped: perhaps a link is away for a moment. They get so many times
the deadline: after a cut of 3 s, TCP sends again only 6 s after its beginning."""


class Hung(NamedTuple):
    """Who stands still, for how long, beyond which deadline."""

    ranks: tuple[int, ...]
    """Ranks that do not even say that they live, or are stopped; empty if all do."""
    age_s: float
    deadline_s: float
    doing: str


class Pace:
    """The usual length of steps, validations and checkpoints of this job."""

    def __init__(
        self, job: JobSpec, section_s: float, finish_s: float = 0.0, *, save_s: float = 0.0
    ) -> None:
        """Deadlines that no step teaches.

        section_s  how long nothing may move in a validation or checkpoint
        finish_s   how long ranks wait for the last save before they call it an error
        save_s     how long a checkpoint may take within which nothing moves
        """
        self._job, self._finish_s = job, finish_s
        self._sections = {"eval": section_s, "checkpoint": max(section_s, save_s)}
        self._steps: deque[float] = deque(maxlen=_KEPT)

    def step(self, length_s: float) -> None:
        """A step ended."""
        self._steps.append(length_s)

    @property
    def usual_s(self) -> float:
        """The median length of a step; 0 before the first."""
        return statistics.median(self._steps) if self._steps else 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough steps were seen."""
        return len(self._steps) >= _LEARNT

    def deadline_s(self, doing: str) -> float:
        """How long what a rank does may take."""
        outer = doing.partition("/")[0]
        if outer == "finish":
            return self._finish_s + self._job.start_s
        if outer in ("", "start") or not self.is_known:
            return self._job.start_s
        if outer in self._sections:
            return self._sections[outer]
        return max(self._job.hang_s, self._job.hang_steps * statistics.median(self._steps))


class HangWatch:
    """Whether a start of the job stands still."""

    def __init__(self, pace: Pace, now_s: float) -> None:
        self._pace = pace
        self._sum = 0
        self._moved_s = self._began_s = now_s

    def judge(self, ranks: Mapping[int, RankBeat], now_s: float) -> Hung | None:
        """Call with the newest beat of every rank."""
        running = [beat for beat in ranks.values() if beat.code is None]
        total = sum([beat.actions for beat in ranks.values()])
        if total != self._sum:
            self._sum, self._moved_s = total, now_s
        if not running:
            return None
        late = self._latest(_oldest(running), now_s - self._moved_s)
        if late is None:
            return None
        dumb = tuple(sorted(b.rank for b in running if b.health in _DUMB))
        return late._replace(ranks=dumb if len(dumb) < max(2, len(ranks) // 2 + 1) else ())

    def _latest(self, oldest: Mapping[tuple[str, Health], float], quiet_s: float) -> Hung | None:
        """Of what is beyond its deadline what has taken longest.

        oldest  what ranks do and how they are -> the longest of them
        """
        starved = any(health == "starved" for _, health in oldest)
        more = 1.0 if any(map(_is_culprit, oldest)) else _STALL
        late: Hung | None = None
        for (doing, health), longest in oldest.items():
            age = longest if doing else quiet_s
            if doing.partition("/")[0] in _SECTIONS:
                age = min(age, quiet_s)
            limit = more * self._pace.deadline_s(doing)
            if health in _DUMB and self._pace.is_known:
                age, limit = max(age, quiet_s), self._pace.deadline_s("step")
            if starved and age < _PATIENCE * limit:
                continue  # the machine has more to do than it can; who waits there does not hang
            if age <= limit or (quiet_s < min(_QUIET_S, limit) and age < _PATIENCE * limit):
                continue
            if late is None or age > late.age_s:
                late = Hung((), age, limit, doing)
        return late


def _oldest(running: Sequence[RankBeat]) -> dict[tuple[str, Health], float]:
    """In one pass, since a job has thousands of ranks that do few different things."""
    oldest: dict[tuple[str, Health], float] = {}
    for beat in running:
        key = (beat.doing, beat.health)
        if beat.age_s > oldest.get(key, -1.0):
            oldest[key] = beat.age_s
    return oldest


def _is_culprit(key: tuple[str, Health]) -> bool:
    """Whether who does this stands still outside all communication."""
    doing, health = key
    return health in _DUMB or not doing or doing.rpartition("/")[2] not in _TALKING


class Silence:
    """When each node was last heard, by the driver's clock; a lost Redis stops the clock."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._heard: dict[str, float] = {}
        self._steps: dict[str, int] = {}
        self._all_steps = -1
        self._stepped_s = self._usual_s = 0.0

    def heard(self, node: str, now_s: float) -> None:
        """A beat came."""
        self._heard[node] = now_s

    def stepped(self, step: int, now_s: float, usual_s: float = 0.0) -> None:
        """The job made a step: every node that carries ranks took part in it.

        usual_s  how long a step takes
        """
        self._usual_s = usual_s
        if step > self._all_steps:
            self._all_steps, self._stepped_s = step, now_s

    def forget(self, node: str) -> None:
        """The node left."""
        self._heard.pop(node, None)

    def pause(self, now_s: float) -> None:
        """Nobody can be heard now, through no fault of theirs."""
        self._heard = dict.fromkeys(self._heard, now_s)

    def silent_s(self, node: str, now_s: float) -> float:
        """How long nothing was heard of it."""
        return now_s - self._heard.get(node, now_s)

    def is_lost(
        self, node: str, now_s: float, *, carries: bool, vouched: bool = False
    ) -> bool:  # fmt: skip
        """Silent for too long, and nothing else proves that it lives."""
        silent = self.silent_s(node, now_s)
        if silent <= self._job.lost_s:
            return False
        lately = max(self._job.lost_s, _PROOF_STEPS * self._usual_s)
        proven = carries and self._stepped_s > now_s - lately
        return not (proven or vouched) or silent > self._job.grace_s


class Spikes:
    """Losses that leave their past by far."""

    def __init__(self, factor: float, *, window: int = 32) -> None:
        self._factor = factor
        self._past: deque[float] = deque(maxlen=window)

    def is_spike(self, loss: float) -> bool:
        """Whether this loss is one; others become the past."""
        full = len(self._past) >= (self._past.maxlen or 1) // 2
        if self._factor and full and loss > self._factor * statistics.median(self._past):
            return True
        self._past.append(loss)
        return False
