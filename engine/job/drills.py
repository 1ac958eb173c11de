"""Rehearsals: inject what a drill asks for from outside the ranks, and score what came of all.

Ranks do their own part (engine/train/rehearse.py). A score is made from the incidents' records: was
the fault noticed, by what, after how long, was the right rank or node named, how long until the
first new step, how many steps were lost.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from engine.ckpt.catalog import describe, step_folders
from engine.ckpt.local_store import LocalStore
from engine.ckpt.store import open_store
from engine.job.incident import Recovery
from engine.processes import family_of, parent_of
from engine.spec.base import Noun, doc
from engine.train.drill import Fault
from engine.train.resume import checkpoint_root
from engine.train.strike import note_strike, read_strikes

if TYPE_CHECKING:
    from engine.job.driver import Driver

_REDIS_STOP_S = {"redis-stop": 20.0, "redis-flap": 1.0}
_HARMLESS = frozenset({"redis-kill", "redis-stop", "redis-flap", "clock"})
"""Faults after which nothing may be restarted."""
_HOUR_S = 3600.0


class Score(Noun, frozen=True, kw_only=True):
    """How the job took one fault."""

    fault: str
    came: Annotated[bool, doc("the fault was injected")] = False
    is_passed: Annotated[bool, doc("noticed, located and mended; or rightly left alone")] = False
    detected_by: str = ""
    detected_s: Annotated[float | None, doc("from the fault to its detection")] = None
    is_located: Annotated[
        bool | None, doc("the right rank or node was named; None: nothing to")
    ] = None
    named: str = ""
    recovered_s: Annotated[float | None, doc("from the fault to the first new step")] = None
    steps_lost: int = 0


class DrillReport(Noun, frozen=True, kw_only=True):
    """How a rehearsal went."""

    job: str
    ended: str
    steps: int
    restarts: int
    scores: tuple[Score, ...]


def drill_report(driver: "Driver", ended: str) -> DrillReport:
    """The report of a rehearsal, also left in the run folder."""
    report = DrillReport(
        job=driver.folder.name, ended=ended, steps=max(0, driver.newest_step),
        restarts=sum(r.decision is not None for r in driver.recoveries),
        scores=driver.drills.score(driver.recoveries),
    )  # fmt: skip
    path = driver.folder / "drill.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return report


class Drills:
    """The faults of one invocation."""

    def __init__(self, faults: Sequence[Fault], driver: "Driver") -> None:
        self._faults, self._driver = tuple(faults), driver
        self._due: dict[int, float] = {}
        self._later: list[tuple[float, int]] = []
        """(when, process) to wake again."""
        self._told = False

    @property
    def texts(self) -> tuple[str, ...]:
        """What ranks are told."""
        return tuple(fault.text() for fault in self._faults if fault.is_in_rank)

    def act(self) -> None:
        """Inject what is due; called from the driver's loop."""
        if not self._faults:
            return
        now = time.monotonic()
        for when, pid in self._later:
            if when <= now:
                _send(pid, signal.SIGCONT)
        self._later = [entry for entry in self._later if entry[0] > now]
        for index, fault in enumerate(self._faults):
            if fault.is_in_rank or (index in self._due and self._due[index] < 0):
                continue
            if index not in self._due and self._driver.newest_step >= fault.step:
                self._due[index] = now + fault.after
            if 0 <= self._due.get(index, -1.0) <= now and self._inject(fault, now):
                self._due[index] = -1.0

    def _inject(self, fault: Fault, now: float) -> bool:
        """Let it come; false if that cannot be now. Only what came counts as a strike."""
        driver = self._driver
        if driver.state != "running" or not self._can_come(fault):
            return False
        if fault.kind == "torn-checkpoint" and not (driver.is_early and self._tear()):
            return False  # after the last step only what the run leaves behind could be torn
        note_strike(driver.folder, fault.text())
        if fault.kind in ("kill", "torn-checkpoint", "stop"):
            number = signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
            _send(driver.nodes.ranks[fault.rank].pid, number)
        elif fault.kind == "slow":
            node = driver.nodes.all[self._node_of(fault)]
            driver.tell(node, "slow", ranks=(fault.rank,), value=fault.share)
        elif fault.kind == "clock":
            driver.tell(driver.nodes.all[self._node_of(fault)], "clock", value=_HOUR_S)
        elif fault.kind == "driver-kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind.startswith("redis"):
            self._hit_redis(fault.kind, now)
        else:
            self._hit_node(fault)
        return True

    def _can_come(self, fault: Fault) -> bool:
        """Whether what it hits is there."""
        driver = self._driver
        if fault.kind in ("kill", "stop", "slow", "torn-checkpoint"):
            beat = driver.nodes.ranks.get(fault.rank)
            return beat is not None and beat.pid > 0
        if fault.kind.startswith("redis"):
            return driver.server is not None and driver.server.pid > 0
        if fault.kind in ("nursery-kill", "node-kill", "node-stop"):
            node = driver.nodes.all.get(self._node_of(fault))
            return node is not None and node.beat is not None
        return True

    def _node_of(self, fault: Fault) -> str:
        """The node that it hits; there may be fewer than at the start by now."""
        order = self._driver.order
        if fault.is_of_node:
            return order[fault.node % len(order)]
        return self._driver.nodes.node_of(fault.rank)

    def _tear(self) -> bool:
        root = checkpoint_root(self._driver.folder, self._driver.recipe.checkpoint.path)
        torn = tear_checkpoint(root)
        if not torn and not self._told:
            self._told = True
            self._driver.watch.on_note(f"drill: no checkpoint to tear in {root} yet")
        return torn

    def _hit_redis(self, kind: str, now: float) -> None:
        assert self._driver.server is not None, "looked at before"
        pid = self._driver.server.pid
        _send(pid, signal.SIGKILL if kind == "redis-kill" else signal.SIGSTOP)
        if kind != "redis-kill":
            self._later.append((now + _REDIS_STOP_S[kind], pid))

    def _hit_node(self, fault: Fault) -> None:
        beat = self._driver.nodes.all[self._node_of(fault)].beat
        assert beat is not None, "looked at before"
        family = family_of(beat.pid)
        if fault.kind == "nursery-kill":
            parents = {parent_of(rank.pid) for rank in beat.ranks if rank.pid}
            family = [pid for pid in parents if pid > 1]
        number = signal.SIGSTOP if fault.kind == "node-stop" else signal.SIGKILL
        for pid in family:
            _send(pid, number)

    def score(self, recoveries: Sequence[Recovery]) -> tuple[Score, ...]:
        """What came of each fault, in the order in which they were given."""
        strikes = read_strikes(self._driver.folder)
        return tuple(
            score_of(fault, strikes.get(fault.text()), recoveries, self._driver.nodes_of_start)
            for fault in self._faults
        )


def score_of(
    fault: Fault, struck_s: float | None, recoveries: Sequence[Recovery],
    nodes: dict[int, tuple[str, ...]],
) -> Score:  # fmt: skip
    """Match a fault with the first incident after it.

    struck_s  when it came, seconds since 1970; None if it never did
    nodes     start of the job -> names of its nodes in order
    """
    if struck_s is None:
        return Score(fault=fault.text())
    after = [r for r in recoveries if r.incident.time_s >= struck_s - 0.05]
    if fault.kind in _HARMLESS:
        restarted = [r for r in after if r.decision is not None]
        return Score(fault=fault.text(), came=True, is_passed=not restarted,
                     named="; ".join(r.incident.what for r in restarted))  # fmt: skip
    first = next((r for r in after if (r.incident.kind == "slow") == (fault.kind == "slow")), None)
    if first is None:
        return Score(fault=fault.text(), came=True)
    incident = first.incident
    located: bool | None = fault.rank in incident.ranks
    if fault.is_of_node:
        order = nodes.get(incident.attempt, ())
        located = bool(order) and incident.nodes == (order[fault.node % len(order)],)
    elif fault.kind in ("nan", "bug"):
        located = None  # every rank sees it alike
    delay = incident.time_s - struck_s
    back = delay + first.stepped_s if first.stepped_s is not None else None
    ended_as_meant = fault.kind == "bug" or back is not None
    if fault.kind == "slow":
        ended_as_meant = True
    return Score(
        fault=fault.text(), came=True, is_passed=located is not False and ended_as_meant,
        detected_by=first.detected_by, detected_s=delay, is_located=located,
        named=", ".join(incident.nodes) + " rank " + ",".join(map(str, incident.ranks)),
        recovered_s=back, steps_lost=first.steps_lost,
    )  # fmt: skip


def tear_checkpoint(root: str | Path) -> bool:
    """Cut the largest file of the newest checkpoint in half, as a lost write does.

    False if there is none, or if it is not on a file system of this machine.
    """
    store = open_store(root)
    if not isinstance(store, LocalStore):
        return False
    for folder in reversed(step_folders(store)):
        if describe(store, folder).state != "committed":
            continue
        largest = max(store.files(folder), key=lambda found: found.bytes, default=None)
        if largest is None:  # pruned meanwhile
            continue
        try:
            os.truncate(store.root / folder / largest.name, largest.bytes // 2)
        except FileNotFoundError:
            continue
        return True
    return False


def _send(pid: int, number: int) -> None:
    if pid > 1:
        try:
            os.kill(pid, number)
        except OSError:
            return
