"""What the driver sees: everything that can be wrong with a running job, looked for in turn.

The judgements themselves are pure (`detect.py`, `cause.py`, `slow.py`); here they are asked.
"""

import re
import time
from typing import TYPE_CHECKING, Literal

from engine.errors import RunFailed
from engine.job.cause import Cause, find_cause
from engine.job.detect import HangWatch, Pace, Silence, Spikes
from engine.job.incident import Incident, Recovery, read_recoveries, write_recovery
from engine.job.nodes import Node
from engine.job.slow import SlowWatch
from engine.train.failure import RankFailure, read_failures
from engine.train.metrics import StepMetrics

if TYPE_CHECKING:
    from engine.job.driver import Driver

GRACE_S = 0.5
"""How long the other ranks may take to notice that one is gone, before they are ended."""
_OF_ANY_RANK = frozenset({"bug", "numbers", "input"})
_SELDOM = 10.0
"""With thousands of nodes to look at, looking takes a tenth of the driver's time at most."""
_END_GRACE_S = 30.0
"""How long ranks that ended in order may be apart."""


def signature(kind: str, what: str, ranks: tuple[int, ...]) -> str:
    """Equal for faults that look the same: numbers in the text do not count, the ranks do.

    In whatever order they came; and not at all for faults of program and data, which any rank can
    be the first to meet.
    """
    text = re.sub(r"[0-9.]+", "#", what)[:200]
    who = () if kind in _OF_ANY_RANK else sorted(ranks)[:8]
    return f"{kind}|{','.join(map(str, who))}|{text}"


class Sight:
    """The watch over one invocation."""

    def __init__(self, driver: "Driver") -> None:
        job = driver.recipe.job
        self.driver = driver
        saves = driver.recipe.checkpoint
        self.pace = Pace(
            job, driver.recipe.monitor.step_deadline_s, saves.deadline_s,
            save_s=0.0 if saves.two_stage else saves.deadline_s,
        )  # fmt: skip
        self.silence = Silence(job)
        self._spikes = Spikes(job.spike)
        self._loss: StepMetrics | None = None
        self.begin()

    def begin(self) -> None:
        """Ranks are started anew."""
        self._hang = HangWatch(self.pace, time.monotonic())
        self._slow = SlowWatch(self.driver.recipe.layout)
        self._bad_since = self._bad_wall_s = self._end_since = 0.0
        self._look_at = 0.0
        self._has_stepped = False

    def stepped(self, metrics: StepMetrics, now_s: float) -> None:
        """A step ended."""
        self._has_stepped = True
        self.pace.step(metrics.step_s)
        self.silence.stepped(metrics.step, now_s, self.pace.usual_s)
        self._loss = metrics

    def watch(self) -> Incident | None:
        """What is wrong now, if anything; also notices that all ranks are done."""
        nodes, now = self.driver.nodes, time.monotonic()
        world = self.driver.recipe.layout.world_size
        lost = [n for n in nodes if n.ranks and n.state == "lost"]
        looks = now >= self._look_at
        lost += self._silent(now) if looks else []
        if lost and self.driver.state != "stopping":
            names = tuple(n.name for n in lost)
            ranks = tuple(rank for n in lost for rank in n.ranks)
            what = "; ".join(f"{n.name} is lost: {n.note}" for n in lost)
            return self._incident("node", what, ranks=ranks, nodes=names, confidence=0.95)
        if len(nodes.ended) >= world and not any(r.code for r in nodes.ended):
            if self.driver.is_early and self.driver.state != "stopping":
                # ranks stopped in order though nobody here asked: a scheduler wanted nodes back
                self.driver.watch.on_note("ranks were asked to stop by somebody else")
                self.driver.enter("stop")
            self.driver.enter("all_done")
            return None
        if self._has_failed(now):
            return self._crashed()
        if self.driver.state == "stopping" or not looks:
            return None
        hung = self._hang.judge(nodes.ranks, now)
        self._look_at = now + _SELDOM * (time.monotonic() - now)
        if hung is not None:
            spot = f" in {hung.doing}" if hung.doing else " before its first step"
            limit = f"expected within {hung.deadline_s:.1f} s"
            what = f"no rank moved for {hung.age_s:.1f} s{spot}, {limit}"
            kind: Literal["hang", "start"] = "hang" if self.pace.is_known else "start"
            return self._incident(kind, what, ranks=hung.ranks,
                                  confidence=0.9 if hung.ranks else 0.3)  # fmt: skip
        return self._numbers() or self._slow_ranks()

    def _silent(self, now: float) -> list[Node]:
        """Nodes that are lost to silence; one that is only silent changes its state."""
        found = []
        for node in self.driver.nodes:
            if node.state in ("ready", "active", "silent") and self.silence.is_lost(
                node.name,
                now,
                carries=bool(node.ranks),
                vouched=self.driver.place.vouches(node),
            ):
                silent = self.silence.silent_s(node.name, now)
                self.driver.nodes.lose(node, f"no heartbeat for {silent:.1f} s")
                if node.ranks:  # a spare's loss is no incident, and dates none that comes later
                    # it has been under suspicion, for all to see, since then
                    suspected_s = time.time() - (silent - self.driver.recipe.job.silent_s)
                    self._bad_wall_s = self._bad_wall_s or suspected_s
                    found.append(node)
            elif (
                node.is_here
                and self.silence.silent_s(node.name, now) > self.driver.recipe.job.silent_s
            ):
                node.happens("silence")
        return found

    def _has_failed(self, now: float) -> bool:
        """Whether ranks ended as they should not, and the others had a moment to say so."""
        ended = self.driver.nodes.ended
        if not ended:
            return False
        if any(report.code for report in ended):
            if not self._bad_since:
                self._bad_since, self._bad_wall_s = now, time.time()
            every = len(ended) >= self.driver.recipe.layout.world_size
            if self.driver.state == "stopping":
                return every or now - self._bad_since > 3 * GRACE_S
            return every or now - self._bad_since > GRACE_S
        self._end_since = self._end_since or now
        return now - self._end_since > _END_GRACE_S

    def _crashed(self) -> Incident | None:
        if self.driver.state == "stopping":
            self.driver.kill_ranks()
            self.driver.enter("ended")
            return None
        cause = self.cause()
        named = tuple(dict.fromkeys(self.driver.nodes.node_of(rank) for rank in cause.ranks))
        kind: Literal["crash", "bug", "input", "numbers", "start", "corruption"] = "crash"
        if cause.is_corruption:
            kind = "corruption"
        elif self._only_this_start(cause):
            kind, named = "start", self._nodes_that_failed()
            cause = cause if named else cause._replace(ranks=())
        elif cause.kind is not RunFailed and not self._has_stepped:
            kind = "input"
        elif cause.bad_step >= 0:
            kind = "numbers"
        elif cause.is_exception:
            kind = "bug"
        return self._incident(kind, cause.what, ranks=cause.ranks, nodes=named,
                              remedy=cause.remedy, confidence=0.9 if cause.is_own else 0.4,
                              step=cause.bad_step, error=cause.kind.__name__)  # fmt: skip

    def _only_this_start(self, cause: Cause) -> bool:
        """A rank raised an error before the first step, though an earlier start made steps.

        So it is not the recipe: a node that is new, or that changed, lacks what the others have.
        """
        stepped = self._has_stepped or self.driver.newest_step < 0
        return cause.is_exception and cause.bad_step < 0 and not stepped

    def _nodes_that_failed(self) -> tuple[str, ...]:
        """The node whose ranks failed by themselves; none if there are several."""
        own = (f for f in self._failures() if not f.lost_peer)
        nodes = dict.fromkeys(self.driver.nodes.node_of(f.rank) for f in own)
        return tuple(nodes) if len(nodes) == 1 else ()

    def _failures(self) -> list[RankFailure]:
        everything = read_failures(self.driver.folder)
        return [f for f in everything if f.attempt == self.driver.attempt]

    def cause(self) -> Cause:
        """Why ranks of this start failed, as its reports and records tell."""
        failures = self._failures()
        cause = find_cause(self.driver.nodes.ended[: self.driver.killed_from], failures)
        gone = self.driver.nodes.answers.get("nursery", {})
        if cause.is_own and cause.ranks and not failures and gone and self.driver.attempt >= 0:
            node = self.driver.nodes.node_of(cause.ranks[0])
            if node in gone:
                log = self.driver.folder / "log" / "nursery.log"
                return cause._replace(what=gone[node], remedy=f"read {log}")
        return cause

    def _numbers(self) -> Incident | None:
        """A loss that jumps; those that are no numbers end their ranks and come as crashes."""
        last, self._loss = self._loss, None
        if last is None or last.skipped or not self._spikes.is_spike(last.loss):
            return None
        samples = self.driver.recipe.batch.global_batch
        factor = self.driver.recipe.job.spike
        what = (
            f"loss {last.loss:.4g} of step {last.step} left its past by more than {factor:g}x; "
            f"its samples are {(last.step - 1) * samples} to {last.step * samples - 1}"
        )
        return self._incident("spike", what, step=last.step - 1, confidence=0.8)

    def _slow_ranks(self) -> Incident | None:
        """A rank whose own work takes longer than its peers'."""
        found = self._slow.look(self.driver.nodes.works)
        self.driver.nodes.works = []
        if found is None:
            return None
        names = tuple(dict.fromkeys(self.driver.nodes.node_of(rank) for rank in found.ranks))
        incident = self._incident("slow", found.what, ranks=found.ranks, nodes=names,
                                  confidence=found.confidence)  # fmt: skip
        self.driver.watch.on_note(f"{incident.what} on {', '.join(names)}")
        if self.driver.recipe.job.slow == "evict" and len(self.driver.nodes.here(carrying=False)):
            return incident
        self.driver.recoveries.append(
            Recovery(incident=incident, detected_by="own work", stepped_s=0.0)
        )
        write_recovery(self.driver.folder, self.driver.recoveries[-1])
        return None

    def _incident(
        self, kind: str, what: str, *, ranks: tuple[int, ...] = (), nodes: tuple[str, ...] = (),
        confidence: float = 0.5, remedy: str = "", step: int = -1, error: str = "RunFailed",
    ) -> Incident:  # fmt: skip
        named = nodes or tuple(dict.fromkeys(self.driver.nodes.node_of(rank) for rank in ranks))
        return Incident(
            number=self._next_number(), kind=kind,  # type: ignore[arg-type] # one of its kinds
            what=what, remedy=remedy, error=error, ranks=ranks, nodes=named,
            step=step if step >= 0 else self.driver.newest_step, confidence=confidence,
            signature=signature(kind, what, ranks), attempt=self.driver.attempt,
            time_s=self._bad_wall_s or time.time(),
        )  # fmt: skip

    def _next_number(self) -> int:
        """Counts over all invocations of the run, so that no evidence is overwritten."""
        if self.driver.recoveries:
            return self.driver.recoveries[-1].incident.number + 1
        earlier = read_recoveries(self.driver.folder)
        return earlier[-1].incident.number + 1 if earlier else 1
