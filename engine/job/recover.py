"""What follows a fault: suspend, collect, check, replace, start again (paper 4.1).

A straight line, so that it can be read as one; the state table says that it is a legal one. Nodes
are heard all the while. Ranks end, nurseries stay: a new start imports nothing.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.diagnose.finding import Report
from engine.errors import RunFailed
from engine.job.bisect import compare_nodes
from engine.job.cause import KINDS, Cause
from engine.job.evidence import judge, keep_evidence
from engine.job.incident import Decision, Incident, Recovery, write_recovery
from engine.job.node_check import FIT
from engine.job.nodes import Node
from engine.job.policy import SURE, Fleet, decide
from engine.job.run import prepare_folder
from engine.job.shrink import smaller
from engine.train.failure import clear_failures

if TYPE_CHECKING:
    from engine.job.driver import Driver

_DUMP_S = 2.5
_KILL_S = 3.0
_VICTIMS = 0.5
"""At most so sure is an incident in which ranks only lost their peers."""
_VERDICT_S = 10.0
_CHECK_S = {"passive": 12.0, "light": 90.0}
_WARM_S = 120.0
_NO_ANSWER = "it gave no answer"
_KINDS_WITHOUT_CHECK = ("input", "bug", "numbers", "spike")
"""Faults of program or data: nodes are looked at only when they come again."""


class Recoverer:
    """Mends one invocation of a run, as often as its recipe allows."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.history: list[Incident] = []
        self._failed: set[str] = set()
        """Nodes that failed the newest check; one that only gave no answer may come again."""
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def remember(self, recoveries: Sequence[Recovery], *, after: int) -> None:
        """What a driver before this one met in this invocation: budgets and memory go on."""
        mine = [one for one in recoveries if one.incident.number > after]
        self.driver.recoveries[:] = mine
        self.history = [one.incident for one in mine if one.decision is not None]

    def recover(self, incident: Incident) -> Cause | None:
        """Bring the job back to running; returns why it could not be, if so."""
        driver = self.driver
        driver.enter("trouble")
        driver.watch.on_note(f"{incident.kind}: {incident.what}")
        driver.enter("trouble")
        begin = time.monotonic()
        incident, folder = self._collect(incident)
        if driver.interrupts.any:
            self._give_way()
            return None
        found = Recovery(incident=incident, detected_by=_detector(incident))
        driver.recoveries.append(found)
        self.note(suspended_s=time.monotonic() - begin)
        incident = self._judge(incident, folder)
        self.note(incident=incident)
        driver.enter("collected")
        unfit = self._check(incident)
        driver.enter("checked")
        self.note(checked_s=time.monotonic() - begin)
        decision = self._decide(incident, unfit)
        self.history.append(incident)
        self.note(decision=decision)
        cause = self._carry_out(decision, incident)
        self.note(started_s=time.monotonic() - begin)
        return cause

    def note(self, number: int = 0, **fields: object) -> None:
        """Add to the record of an incident, by default of the newest; also from other threads."""
        driver = self.driver
        with self._lock:
            for index, one in enumerate(driver.recoveries):
                if one.incident.number == (number or driver.recoveries[-1].incident.number):
                    driver.recoveries[index] = msgspec.structs.replace(one, **fields)
                    write_recovery(driver.folder, driver.recoveries[index])

    def _give_way(self) -> None:
        """A person stopped the run in the middle of this."""
        self.driver.enter("stop")
        self.driver.enter("ended")

    # -- suspend and collect

    def _collect(self, incident: Incident) -> tuple[Incident, Path]:
        driver = self.driver
        if incident.kind in ("hang", "start"):
            nodes = [n for n in driver.nodes if n.ranks and n.is_here]
            with driver.place.together():
                ids = [driver.tell(node, "dump") for node in nodes]
            driver.pump(lambda: self._answered(ids, nodes), _DUMP_S)
            driver.pump(lambda: False, 0.2)  # stacks are written by signal
        driver.kill_ranks()
        world = driver.recipe.layout.world_size
        driver.pump(lambda: len(driver.nodes.ended) >= world, _KILL_S)
        for node in driver.nodes:
            beats = [driver.nodes.ranks.get(rank) for rank in node.ranks]
            # also one under suspicion: its peers' errors can come before its silence is long enough
            may_live = node.is_here or node.state == "silent"
            if may_live and any(beat is None or beat.code is None for beat in beats):
                driver.nodes.lose(node, "nothing was heard of it")
        incident = self._with_lost_nodes(incident)
        folder = keep_evidence(driver.folder, incident.number)
        clear_failures(driver.folder)
        return incident, folder

    def _with_lost_nodes(self, incident: Incident) -> Incident:
        """Ranks that died for want of a peer whose node is gone: the node is the fault."""
        lost = [n for n in self.driver.nodes if n.ranks and n.state == "lost"]
        if not lost or incident.kind == "node" or incident.confidence > _VICTIMS:
            return incident
        return msgspec.structs.replace(
            incident, kind="node", what="; ".join(f"{n.name} is lost: {n.note}" for n in lost),
            nodes=tuple(n.name for n in lost), ranks=tuple(r for n in lost for r in n.ranks),
            confidence=0.95, signature=f"node|{','.join(n.name for n in lost)}",
        )  # fmt: skip

    def _answered(self, ids: list[str], nodes: list[Node]) -> bool:
        answers = self.driver.nodes.answers
        return all(
            not node.is_here or node.name in answers.get(i, {}) or self._is_still(node)
            for i, node in zip(ids, nodes, strict=True)
        )

    def _is_still(self, node: Node) -> bool:
        """A spare of which nothing is heard: nobody waits for what it would answer."""
        silent_s = self.driver.sight.silence.silent_s(node.name, time.monotonic())
        return not node.ranks and silent_s > self.driver.recipe.job.silent_s

    def _judge(self, incident: Incident, folder: Path) -> Incident:
        """Let `diagnose` look; only a hang has to wait for what it says."""
        found: list[Report | None] = []
        number = incident.number

        def look() -> None:
            report = judge(folder)
            found.append(report)
            if report is not None:
                self._note_verdict(number, report)

        thread = threading.Thread(target=look, name="diagnose", daemon=True)
        thread.start()
        self._threads.append(thread)
        if incident.kind not in ("hang", "start"):
            return incident
        self.driver.pump(lambda: not thread.is_alive(), _VERDICT_S)
        report = found[0] if found else None
        if report is None or report.verdict.kind != "hang" or not report.verdict.ranks:
            return incident
        verdict = report.verdict
        if incident.ranks and verdict.confidence <= incident.confidence:
            return incident
        nodes = tuple(dict.fromkeys(self.driver.nodes.node_of(r) for r in verdict.ranks))
        return msgspec.structs.replace(
            incident, ranks=verdict.ranks, nodes=nodes, confidence=verdict.confidence,
            what=f"{incident.what}; {verdict.what}",
        )  # fmt: skip

    def _note_verdict(self, number: int, report: Report) -> None:
        """Add the verdict to the record, whenever it comes."""
        verdict = report.verdict
        self.note(number, verdict=verdict.what)
        one = next(r for r in self.driver.recoveries if r.incident.number == number)
        if not one.incident.ranks and verdict.kind in ("hang", "crash"):
            nodes = tuple(dict.fromkeys(self.driver.nodes.node_of(r) for r in verdict.ranks))
            named = msgspec.structs.replace(one.incident, ranks=verdict.ranks, nodes=nodes)
            self.note(number, incident=named)

    def finish(self) -> None:
        """Wait a little for verdicts that are still being made."""
        for thread in self._threads:
            thread.join(timeout=_VERDICT_S)

    # -- check and decide

    def _check(self, incident: Incident) -> dict[str, str]:
        """All nodes look at themselves, side by side; node -> what it fails with."""
        driver = self.driver
        self._failed = set()
        again = any(one.signature == incident.signature for one in self.history)
        level = driver.recipe.job.check
        if incident.kind == "corruption" and level == "passive" and incident.confidence < SURE:
            level = "light"  # replicas alone do not tell who computes wrong
        if level == "none" or (incident.kind in _KINDS_WITHOUT_CHECK and not again):
            return {}
        nodes = driver.nodes.here()
        with driver.place.together():
            ids = [driver.tell(node, "check", level=level) for node in nodes]
        driver.pump(lambda: self._answered(ids, nodes), _CHECK_S[level])
        unfit = {}
        for order_id, node in zip(ids, nodes, strict=True):
            said = driver.nodes.answers.get(order_id, {}).get(node.name, _NO_ANSWER)
            if said != FIT:
                unfit[node.name] = said.removeprefix("unfit: ")
        self._failed = {name for name, said in unfit.items() if said != _NO_ANSWER}
        return unfit

    def _fleet(self, unfit: dict[str, str]) -> Fleet:
        driver = self.driver
        ready = tuple(
            n.name for n in driver.nodes
            if n.is_here and n.is_warm and n.name not in unfit and n.name not in driver.order
        )  # fmt: skip
        lost = frozenset(n.name for n in driver.nodes if n.state in ("lost", "left", "evicted"))
        return Fleet(tuple(driver.order), lost, unfit, ready, driver.place.can_start)

    def _decide(self, incident: Incident, unfit: dict[str, str]) -> Decision:
        driver = self.driver
        decision = decide(incident, self.history, self._fleet(unfit), driver.recipe.job)
        if decision.kind != "bisect":
            return decision
        driver.watch.on_note(f"{decision.why}: testing all nodes against each other")
        unfit = unfit | compare_nodes(driver)
        return decide(incident, self.history, self._fleet(unfit), driver.recipe.job, bisected=True)

    # -- replace and start

    def _carry_out(self, decision: Decision, incident: Incident) -> Cause | None:
        driver = self.driver
        for name in decision.evict:
            node = driver.nodes.all[name]
            driver.watch.on_note(f"{name} leaves: {decision.why}")
            driver.tell(node, "end")
            node.happens("evict")
            node.note = node.note or decision.why
            driver.sight.silence.forget(name)
            driver.place.evict(node, decision.why)
        if decision.kind == "stop":
            driver.enter("gave_up")
            return _cause(incident, decision.why, first=len(self.history) == 1)
        if decision.skip_step >= 0:
            driver.skip = (*driver.skip, decision.skip_step)
        if not self._fill(decision):
            if driver.interrupts.any:
                self._give_way()
                return None
            driver.enter("gave_up")
            return _cause(incident, f"{decision.why}; no node came in time", first=False)
        driver.enter("replaced")
        driver.start_ranks()
        return None

    def _fill(self, decision: Decision) -> bool:
        """Put nodes into the places of those that left; False if there were not enough."""
        driver, take = self.driver, list(decision.take)
        for name in decision.evict:
            at = driver.order.index(name)
            if take:
                driver.order[at] = take.pop(0)
            elif driver.place.can_start:
                driver.order[at] = self._new_node()
            elif decision.kind == "wait":
                found = self._wait_for_node()
                if not found:
                    return False
                driver.order[at] = found
            else:
                driver.order.remove(name)
        if decision.kind == "shrink" and not self._shrink():
            return False
        carrying = [driver.nodes.all[name] for name in driver.order]
        return (
            driver.pump(
                lambda: driver.interrupts.any or all(n.is_here and n.is_warm for n in carrying),
                _WARM_S,
            )
            and not driver.interrupts.any
        )

    def _new_node(self) -> str:
        node = self.driver.place.start_node()
        self.driver.nodes.add(node)
        self.driver.sight.silence.heard(node.name, time.monotonic())
        return node.name

    def _wait_for_node(self) -> str:
        driver = self.driver
        driver.enter("no_node")
        found: list[str] = []

        def came() -> bool:
            taken = {*driver.order, *self._failed}
            free = [n.name for n in driver.nodes if n.is_here and n.is_warm
                    and n.name not in taken and not self._is_still(n)]  # fmt: skip
            found[:] = free[:1]
            return bool(free) or driver.interrupts.any

        driver.watch.on_note(f"waiting up to {driver.recipe.job.wait_s:g} s for a node")
        driver.pump(came, driver.recipe.job.wait_s)
        if found:
            driver.enter("node_came")
        return found[0] if found else ""

    def _shrink(self) -> bool:
        """Fewer replicas on the nodes that are left; the folder's recipe follows."""
        driver = self.driver
        layout = driver.recipe.layout
        each = -(-layout.world_size // driver.recipe.job.nodes)
        recipe = smaller(driver.recipe, each * len(driver.order))
        if recipe is None:
            return False
        nodes = -(-recipe.layout.world_size // each)
        driver.order = driver.order[:nodes]
        job = msgspec.structs.replace(recipe.job, nodes=nodes)
        driver.recipe = msgspec.structs.replace(recipe, job=job)
        prepare_folder(driver.folder, driver.recipe)
        driver.watch.on_note(f"going on with dp = {recipe.layout.dp} on {nodes} nodes")
        return True


def _detector(incident: Incident) -> str:
    return {
        "crash": "exit of a rank", "bug": "exit of a rank", "input": "exit of a rank",
        "numbers": "exit of a rank", "hang": "step deadline", "start": "start deadline",
        "node": "heartbeat", "spike": "loss", "slow": "own work", "corruption": "replica check",
    }[incident.kind]  # fmt: skip


def _cause(incident: Incident, why: str, *, first: bool) -> Cause:
    """The end report of a run that is given up; why says more than the fault if it is not new."""
    kind = KINDS.get(incident.error, RunFailed)
    if kind is not RunFailed or first:
        return Cause(incident.what, incident.remedy, kind, True, incident.ranks)
    return Cause(f"{incident.what} ({why})", incident.remedy, kind, True, incident.ranks)
