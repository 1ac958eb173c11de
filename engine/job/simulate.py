"""Months of a job in seconds: the driver's own policy and states under a simulated clock (paper 4).

Faults come at published rates and in a published mix; what follows each is decided by `policy.py`
and has to be a legal path through `state.py`, as in the real driver. What is simulated is only
time: how long detection, checks, restarts and repairs take.
"""

import heapq
import random
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from engine.job.incident import Incident
from engine.job.policy import Fleet, decide
from engine.job.state import JobEvent, JobState, next_job
from engine.spec.base import Count, NonNegative, Noun, Positive, Ratio, Size, doc
from engine.spec.job import JobSpec

_DAY_S = 86_400.0
_HOUR_S = 3600.0
_AGAIN_S = 120.0
"""A node whose hardware is bad and was not found out fails again after about so long."""
_HISTORY = 40


class FaultKind(NamedTuple):
    """One class of faults: its share, how it shows, whether the node is to blame."""

    name: str
    share: float
    kind: str
    """As the driver sees it."""
    is_hardware: bool
    found: float
    """Chance that the self-check finds the cause."""


MIX = (
    FaultKind("GPU, memory, Xid", 0.45, "crash", True, 0.9),
    FaultKind("network", 0.12, "crash", True, 0.7),
    FaultKind("host lost", 0.12, "node", True, 1.0),
    FaultKind("silent hang", 0.10, "hang", True, 0.5),
    FaultKind("program, storage, transient", 0.19, "crash", False, 0.0),
    FaultKind("bad numbers", 0.02, "numbers", False, 0.0),
)
"""From Llama 3's table (419 interruptions), ByteRobust and Minder, rounded."""


class World(Noun, frozen=True, kw_only=True):
    """The machine room and the times that things take there."""

    nodes: Count = 1536
    spares: Size = 16
    gpus_per_node: Count = 8
    step_s: Annotated[Positive, doc("175B on 12,288 GPUs: 6.34 s in the paper")] = 6.34
    failures_per_1000_node_days: Annotated[Positive, doc("Llama 3: 3.79")] = 3.79
    ckpt_every_s: Annotated[Positive, doc("seconds between checkpoints")] = 300.0
    ckpt_stall_s: Annotated[NonNegative, doc("training stands still for each")] = 1.0
    crash_seen_s: NonNegative = 1.0
    check_s: Annotated[NonNegative, doc("self-check of all nodes, side by side")] = 30.0
    restart_s: Annotated[NonNegative, doc("ranks, groups, checkpoint, first step")] = 60.0
    repair_h: Annotated[Positive, doc("an evicted node is away for so long, mean")] = 24.0
    lemons: Annotated[Ratio, doc("share of nodes with ten times the failures")] = 0.02
    price_per_gpu_h: Annotated[NonNegative, doc("money of one GPU-hour")] = 2.0
    days: Positive = 90.0
    seed: Size = 1


class Months(Noun, frozen=True, kw_only=True):
    """What became of the time; shares of the whole, which add up to one with `effective`."""

    days: float
    effective: Annotated[float, doc("training that lasted, over total time")]
    lost_to_ckpt: float
    lost_to_rework: float
    lost_to_detection: float
    lost_to_checks: float
    lost_to_restarts: float
    lost_to_waiting: float
    lost_to_fewer_replicas: float
    faults: Size
    restarts: Size
    evictions: Size
    wrong_evictions: Annotated[Size, doc("nodes that had nothing")]
    gpu_hours_lost: float
    money_lost: float
    ended: str = ""
    """Why the policy gave the run up, if it did."""


class _Clock:
    """Where the time went."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spent: dict[str, float] = {}

    def spend(self, what: str, seconds: float) -> None:
        self.now += seconds
        self.spent[what] = self.spent.get(what, 0.0) + seconds


class Simulation:
    """One job in one machine room."""

    def __init__(self, world: World, job: JobSpec) -> None:
        self.world, self.job = world, job
        self._rng = random.Random(world.seed)
        self._clock = _Clock()
        self._state: JobState = "starting"
        self._order = [f"n{i}" for i in range(world.nodes)]
        self._spares = [f"s{i}" for i in range(world.spares)]
        self._rates = self._make_rates()
        self._away: list[tuple[float, str]] = []
        self._bad: set[str] = set()
        """Nodes that carry ranks though their hardware is broken."""
        self._history: list[Incident] = []
        self._counts = dict.fromkeys(("faults", "restarts", "evictions", "wrong"), 0)
        self._done_s = self._safe_s = 0.0
        """Training done since the beginning, and how much of it is in a checkpoint."""
        self._ended = ""

    def run(self) -> Months:
        """Simulate to the last day."""
        end = self.world.days * _DAY_S
        self._restart()
        while self._clock.now < end and not self._ended:
            self._train(min(end, self._clock.now + self._next_fault_s()))
            if self._clock.now < end:
                self._recover(*self._draw())
        return self._report()

    # -- faults

    def _make_rates(self) -> dict[str, float]:
        """Faults per second of every node; lemons have ten times those of the others."""
        w = self.world
        names = self._order + self._spares
        lemons = set(self._rng.sample(names, round(w.lemons * len(names))))
        mean = w.failures_per_1000_node_days / 1000 / _DAY_S
        base = mean / (1 + 9 * len(lemons) / len(names))
        return {name: base * (10 if name in lemons else 1) for name in names}

    def _next_fault_s(self) -> float:
        total = sum(self._rates[name] for name in self._order)
        waits = [self._rng.expovariate(total)]
        waits += [self._rng.expovariate(1 / _AGAIN_S) for name in self._order if name in self._bad]
        return min(waits)

    def _draw(self) -> tuple[FaultKind, str]:
        """What comes, and on which node; a bad node that was left in fails first."""
        still_bad = [name for name in self._order if name in self._bad]
        if still_bad:
            return MIX[0], still_bad[0]
        node = self._rng.choices(self._order, [self._rates[n] for n in self._order])[0]
        return self._rng.choices(MIX, [one.share for one in MIX])[0], node

    # -- time

    def _train(self, until: float) -> None:
        """Steps and checkpoints until a fault; what no checkpoint holds is lost by it."""
        w = self.world
        length = until - self._clock.now
        share = len(self._order) / w.nodes
        cycle = w.ckpt_every_s + w.ckpt_stall_s
        whole = int(length / cycle)
        stalled = min(whole * w.ckpt_stall_s, length)
        trained = length - stalled
        self._clock.spend("ckpt", stalled)
        self._clock.spend("trained", trained)
        self._clock.spent["fewer"] = self._clock.spent.get("fewer", 0.0) + trained * (1 - share)
        self._done_s += trained * share
        self._safe_s += whole * w.ckpt_every_s * share

    def _enter(self, *events: JobEvent) -> None:
        for event in events:
            self._state = next_job(self._state, event)

    def _recover(self, fault: FaultKind, node: str) -> None:
        w, clock = self.world, self._clock
        self._counts["faults"] += 1
        if fault.is_hardware:
            self._bad.add(node)
        self._enter("trouble", "trouble")
        slow = max(self.job.hang_s, self.job.hang_steps * w.step_s)
        seen = {"hang": slow, "node": self.job.lost_s}.get(fault.kind, w.crash_seen_s)
        clock.spend("detection", seen)
        clock.spent["rework"] = clock.spent.get("rework", 0.0) + self._done_s - self._safe_s
        self._done_s = self._safe_s
        self._enter("collected")
        clock.spend("checks", w.check_s)
        unfit = {node: "simulated"} if self._rng.random() < fault.found else {}
        self._enter("checked")
        self._answer(self._incident(fault, node), unfit, fault.kind == "node")

    def _incident(self, fault: FaultKind, node: str) -> Incident:
        number = self._counts["faults"]
        confidence = 0.9 if self._rng.random() < 0.9 else 0.5
        named = () if fault.kind == "numbers" else (node,)
        return Incident(
            number=number, kind=fault.kind,  # type: ignore[arg-type] # one of its kinds
            what=f"{fault.name} on {node}", nodes=named, step=int(self._done_s / self.world.step_s),
            signature=f"{fault.kind} {node}", confidence=confidence, time_s=self._clock.now,
        )  # fmt: skip

    def _answer(self, incident: Incident, unfit: dict[str, str], is_lost: bool) -> None:
        """Let the policy decide, and do as it says."""
        self._repair()
        lost = frozenset(incident.nodes) if is_lost else frozenset()
        fleet = Fleet(tuple(self._order), lost, unfit, tuple(self._spares))
        decision = decide(incident, self._history[-_HISTORY:], fleet, self.job)
        if decision.kind == "bisect":
            found = {name: "simulated" for name in incident.nodes if name in self._bad}
            self._clock.spend("checks", self.world.check_s)
            fleet = fleet._replace(unfit=unfit | found)
            decision = decide(incident, self._history[-_HISTORY:], fleet, self.job, bisected=True)
        self._history = [*self._history[-_HISTORY:], incident]
        if decision.kind == "stop":
            self._enter("gave_up")
            self._ended = decision.why
            return
        for name in decision.evict:
            self._evict(name)
        for name in decision.take:
            self._spares.remove(name)
            self._order.append(name)
        while decision.kind == "wait" and len(self._order) < self.world.nodes:
            self._wait()
        self._enter("replaced")
        self._restart()

    def _evict(self, name: str) -> None:
        self._counts["evictions"] += 1
        self._counts["wrong"] += name not in self._bad
        self._bad.discard(name)
        self._order.remove(name)
        back = self._clock.now + self._rng.expovariate(1 / (self.world.repair_h * _HOUR_S))
        heapq.heappush(self._away, (back, name))

    def _repair(self) -> None:
        """Nodes that are back become spares, or fill a place that was given up."""
        while self._away and self._away[0][0] <= self._clock.now:
            _, name = heapq.heappop(self._away)
            if len(self._order) < self.world.nodes:
                self._order.append(name)
            else:
                self._spares.append(name)

    def _wait(self) -> None:
        self._enter("no_node")
        back = self._away[0][0]
        self._clock.spend("waiting", max(0.0, back - self._clock.now))
        self._repair()
        self._enter("node_came")

    def _restart(self) -> None:
        self._counts["restarts"] += self._clock.now > 0
        self._clock.spend("restarts", self.world.restart_s)
        self._enter("stepped")

    def _report(self) -> Months:
        total, spent = self._clock.now, self._clock.spent
        parts = {
            name: spent.get(name, 0.0) / total
            for name in ("ckpt", "rework", "detection", "checks", "restarts", "waiting", "fewer")
        }
        effective = self._done_s / total
        hours = (1 - effective) * total / _HOUR_S * self.world.nodes * self.world.gpus_per_node
        return Months(
            days=total / _DAY_S, effective=effective, lost_to_ckpt=parts["ckpt"],
            lost_to_rework=parts["rework"], lost_to_detection=parts["detection"],
            lost_to_checks=parts["checks"], lost_to_restarts=parts["restarts"],
            lost_to_waiting=parts["waiting"], lost_to_fewer_replicas=parts["fewer"],
            faults=self._counts["faults"], restarts=self._counts["restarts"],
            evictions=self._counts["evictions"], wrong_evictions=self._counts["wrong"],
            gpu_hours_lost=hours, money_lost=hours * self.world.price_per_gpu_h, ended=self._ended,
        )  # fmt: skip


ENDLESS = JobSpec(restarts=1_000_000, without_spare="wait")
"""A job that is given up only for a fault that does not go away."""


def simulate(world: World, job: JobSpec = ENDLESS) -> Months:
    """What becomes of `world.days` days of a job."""
    return Simulation(world, job).run()


def table(
    world: World, *, every_s: tuple[float, ...] = (60, 300, 900, 1800),
    spares: tuple[int, ...] = (4, 16, 64), restart_s: tuple[float, ...] = (30, 60, 300),
) -> Iterator[tuple[float, int, float, Months]]:  # fmt: skip
    """Effective time by checkpoint interval, spares and restart time, other things equal."""
    for every in every_s:
        for spare in spares:
            for restart in restart_s:
                one = msgspec.structs.replace(
                    world, ckpt_every_s=float(every), spares=spare, restart_s=float(restart)
                )
                yield every, spare, restart, simulate(one)
