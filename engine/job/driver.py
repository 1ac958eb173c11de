"""The driver of a run: has executors start ranks, watches them, and mends what goes wrong.

It never imports torch. What ranks do it learns from heartbeats and from files (metrics, failures);
what people should see it hands to a callback. Detection is here, what follows it in `recover.py`.
"""

import contextlib
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from engine.comm.listen import listening_socket
from engine.errors import RunFailed
from engine.job.cause import Cause, as_error
from engine.job.drills import Drills
from engine.job.incident import Recovery, read_recoveries
from engine.job.interrupts import Interrupts
from engine.job.nodes import Node, Nodes
from engine.job.openmetrics import MetricsPage
from engine.job.order import Op, Order
from engine.job.place import LocalPlace, Place
from engine.job.recover import Recoverer
from engine.job.run import RunResult, hold_folder, prepare_folder, write_result
from engine.job.server import Server
from engine.job.sight import Sight
from engine.job.start import StartRecord
from engine.job.state import FINAL, JobEvent, JobState, next_job
from engine.job.tally import Ended, Tally
from engine.job.view import JobView, ViewWriter, view_of
from engine.spec.recipe import Recipe
from engine.train.drill import Fault
from engine.train.failure import clear_failures
from engine.train.metrics import MetricsTail, StepMetrics
from engine.train.task import RankTask

POLL_S = 0.05
_ADOPT_S = 3.0
_JOIN_S = 300.0
"""Longest wait for the first nodes."""


class Watch:
    """What a caller is told while a run goes on; all optional."""

    def __init__(
        self,
        *,
        on_step: Callable[[StepMetrics], None] = lambda metrics: None,
        on_note: Callable[[str], None] = lambda text: None,
        on_view: Callable[[JobView], None] = lambda view: None,
    ) -> None:
        self.on_step, self.on_note, self.on_view = on_step, on_note, on_view


class Driver:
    """One invocation of a run."""

    def __init__(
        self, recipe: Recipe, folder: Path, watch: Watch, *, place: Place | None = None,
        drills: tuple[Fault, ...] = (),
    ) -> None:  # fmt: skip
        self.recipe, self.folder, self.watch = recipe, folder, watch
        self.place: Place = place or LocalPlace()
        self.nodes = Nodes()
        self.state: JobState = "starting"
        self.order: list[str] = []
        """Nodes that carry ranks, in the order of their blocks of ranks."""
        self.recoveries: list[Recovery] = []
        self.skip: tuple[int, ...] = ()
        self.attempt = -1
        self.token = 1
        self.server: Server | None = None
        self.drills = Drills(drills, self)
        self.newest_step = -1
        self.nodes_of_start: dict[int, tuple[str, ...]] = {}
        self.recoverer = Recoverer(self)
        self.interrupts = Interrupts()
        self._until = 0
        self._orders = 0
        self.killed_from: int | None = None
        """How many ranks had ended when this driver ended the others."""
        self._warm_noted = False
        self._record: StartRecord | None = None
        self._earlier = 0
        """Number of the last incident before this invocation."""

    def run(self, *, steps: int, resume: str) -> RunResult:
        """Start all ranks, keep them going to the end and say how it went.

        Raises the error a rank met if it is one of input or machine, RunFailed if the run could
        not be kept alive.
        """
        self._tally = Tally(self.recipe, self.folder)
        with hold_folder(self.folder), self.interrupts.counted():
            prepare_folder(self.folder, self.recipe)
            self._tail = MetricsTail(self.folder / "metrics.jsonl")
            self._begin_watch(steps, resume)
            cause = None
            with (
                self._probe_port(),
                self._metrics_page(),
                self.place.store(self.recipe, self.folder) as self.server,
            ):
                self.token = self.place.token
                try:
                    cause = self._go()
                finally:
                    self._end_nodes()
                    self.recoverer.finish()
            for metrics in self._tail.new():
                self._step(metrics)
            ended, cause = self._ending(cause)
            result = self._tally.result(ended, cause, self.last_metrics, self.recoveries)
            write_result(self.folder, result)
            self._views.write(self.view())
        if result.ended == "failed":
            assert cause is not None, "a failed run has a cause"
            raise as_error(cause, self.folder.name)
        return result

    # -- start

    def _begin_watch(self, steps: int, resume: str) -> None:
        self._limit, self._resume = steps, resume
        known = read_recoveries(self.folder)
        self._earlier = known[-1].incident.number if known else 0
        self._views = ViewWriter(self.folder)
        self.sight = Sight(self)

    @contextlib.contextmanager
    def _probe_port(self) -> Iterator[None]:
        """Find out before anything starts whether the recipe's address can be had."""
        with listening_socket(self.recipe.train.host, self.recipe.train.port):
            pass
        yield

    @contextlib.contextmanager
    def _metrics_page(self) -> Iterator[None]:
        """Serve the job's numbers while it runs, if the recipe names a port."""
        port = self.recipe.job.metrics_port
        page = MetricsPage(port, self.view) if port else None
        try:
            yield
        finally:
            if page is not None:
                page.close()

    def _go(self) -> Cause | None:
        """From the first node to the last step; returns why it failed, if it did."""
        for node in self.place.open(self.recipe, self.folder):
            self._welcome(node)
        need = self.recipe.job.nodes
        if self._adopts():
            return self._keep_going()
        clear_failures(self.folder)  # those of ranks that were taken over say what they died of
        self.pump(
            lambda: self.interrupts.any or len(self._warm()) >= need or self._too_few(need),
            _JOIN_S,
        )
        if self.interrupts.any:
            self.enter("stop")
            self.enter("ended")
            return Cause("the ranks did not start", "", RunFailed, is_own=False)
        if len(self._warm()) < need:
            self.enter("gave_up")
            return self._no_nodes(need)
        names = sorted((node.name for node in self._warm()), key=_natural)
        self.order = names[:need]
        self.start_ranks()
        return self._keep_going()

    def _keep_going(self) -> Cause | None:
        """Watch and mend until the end."""
        while self.state not in FINAL:
            self.pump(lambda: True, 0.0)
            self._obey_interrupts()
            incident = self.sight.watch()
            if incident is not None:
                cause = self.recoverer.recover(incident)
                if cause is not None:
                    return cause
        return None

    def _welcome(self, node: Node) -> None:
        self.nodes.add(node)
        self.sight.silence.heard(node.name, time.monotonic())

    def _adopts(self) -> bool:
        """Take over what a driver before this one started, if all of it still runs."""
        record = self.place.recall()
        if record is None:
            return False
        self.attempt, self.skip = record.attempt, record.skip
        if record.over:
            return False
        self._record, self._earlier = record, record.incidents
        self.recoverer.remember(read_recoveries(self.folder), after=self._earlier)
        names = record.order

        def there() -> bool:
            nodes = [self.nodes.all.get(name) for name in names]
            return all(n and n.beat and n.beat.attempt == record.attempt for n in nodes)

        if not self.pump(there, _ADOPT_S):
            for node in self.nodes:
                self.tell(node, "signal", signal=signal.SIGKILL)
            self.pump(lambda: all(n.beat and n.beat.state != "running" for n in self.nodes), 5.0)
            return False
        self.order, self._until = list(names), record.until
        if self.last_metrics is not None:
            self.newest_step = self.last_metrics.step
        self.nodes.begin(self.attempt, self._blocks())
        self.nodes_of_start[self.attempt] = names
        self.sight.begin()
        self.state = "running"
        self.watch.on_note(f"took over a running job: start {self.attempt} on {', '.join(names)}")
        return True

    def _blocks(self) -> list[tuple[Node, tuple[int, ...]]]:
        """Nodes in their order, each with its block of ranks."""
        world = self.recipe.layout.world_size
        each = -(-world // len(self.order))
        return [
            (self.nodes.all[name], tuple(range(i * each, min(world, (i + 1) * each))))
            for i, name in enumerate(self.order)
            if i * each < world
        ]

    def _warm(self) -> list[Node]:
        return [node for node in self.nodes if node.is_here and node.is_warm]

    def _too_few(self, need: int) -> bool:
        """Whether executors that this driver started are gone, and none come by themselves."""
        gone = sum(node.state in ("lost", "left", "evicted") for node in self.nodes)
        return self.place.can_start > 0 and 0 < gone > len(self.nodes.all) - need

    def _no_nodes(self, need: int) -> Cause:
        log = self.folder / "log"
        notes = "; ".join(f"{n.name}: {n.note}" for n in self.nodes if n.note)
        limit = "" if self._too_few(need) else f" within {_JOIN_S:g} s"
        what = f"{len(self._warm())} of {need} nodes came{limit}"
        return Cause(f"{what}; {notes}" if notes else what, f"read executor*.log in {log}",
                     RunFailed, True)  # fmt: skip

    def start_ranks(self) -> None:
        """Have all ranks started, in the blocks of the present order of nodes."""
        self.attempt += 1
        layout, train = self.recipe.layout, self.recipe.train
        blocks = self._blocks()
        self._record = StartRecord(
            attempt=self.attempt, order=tuple(self.order), until=self._until, skip=self.skip,
            incidents=self._earlier,
        )  # fmt: skip
        self.place.remember(self._record)
        self.nodes.begin(self.attempt, blocks)
        self.nodes_of_start[self.attempt] = tuple(node.name for node, _ in blocks)
        self.killed_from = None
        self.sight.begin()
        with listening_socket(train.host, train.port) as meet:
            task = RankTask(
                folder=str(self.folder), world=layout.world_size, host=train.host,
                port=meet.getsockname()[1], steps=self._limit if not self._until else 0,
                until=self._until, resume=self._resume if self.attempt == 0 else self._again(),
                store_url=self.server.url if self.server else "",
                store_prefix=f"{self.folder.name}:{self.token}.{self.attempt}:",
                nodes=tuple(node.name for node, _ in blocks), attempt=self.attempt,
                skip=self.skip, drills=self.drills.texts,
            )  # fmt: skip
            self._tally.ask()
            with self.place.together():
                for node, mine in blocks:
                    listen = meet if 0 in mine and not task.store_url else None
                    self.tell(node, "start", task=task, ranks=mine, listen=listen)
        self._views.write(self.view())  # who carries which ranks, before their first step

    def _again(self) -> str:
        """What a restart continues from: the newest, unless a certain step was wished for."""
        return self._resume if self._resume.isdigit() and not self._tally.steps else "auto"

    # -- the loop's parts, also used while recovering

    def tell(self, node: Node, op: Op, *, listen: socket.socket | None = None,
             **fields: object) -> str:  # fmt: skip
        """Give one node an order; returns its id."""
        self._orders += 1
        order_id = f"{self.token}.{self._orders}"
        order = Order(id=order_id, token=self.token, op=op, **fields)  # type: ignore[arg-type]
        node.link.tell(order, listen)
        return order_id

    def pump(self, done: Callable[[], bool], within_s: float) -> bool:
        """Hear nodes and follow metrics until `done` or for so long; whether it was done."""
        end = time.monotonic() + within_s
        while True:
            self._hear()
            if done():
                return True
            if time.monotonic() >= end:
                return False

    def enter(self, event: JobEvent) -> None:
        """Let the job move to its next state, and say so to whoever follows."""
        self.state = next_job(self.state, event)
        self._views.write(self.view())

    @property
    def is_early(self) -> bool:
        """Whether the newest step is not the last one of this invocation, as far as is known."""
        goal = self._until or (0 if self._limit else self.recipe.train.steps)
        last = self.last_metrics
        return bool(goal) and last is not None and last.step < goal

    @property
    def last_metrics(self) -> StepMetrics | None:
        """The newest step of this invocation, or of one before."""
        return self._tail.last

    def view(self) -> JobView:
        """What people and other programs may know."""
        return view_of(self)

    def _hear(self) -> None:
        """Wait a moment for beats and take them; notice nodes whose executor is gone."""
        self.place.wait([n.link for n in self.nodes if n.state not in ("left", "evicted", "lost")],
                        POLL_S)  # fmt: skip
        now = time.monotonic()
        for node in self.place.newcomers():
            self._welcome(node)
        if self.place.is_deaf:
            self.sight.silence.pause(now)
        for node in list(self.nodes):
            if node.state in ("left", "evicted"):
                continue
            seq = node.beat.seq if node.beat else -1
            there, refused = self.nodes.take(node)
            for text in refused:
                self.watch.on_note(text)
            if not there and node.state != "lost":
                self.nodes.lose(node, "its executor is gone")
            elif node.beat and node.beat.seq != seq:
                self.sight.silence.heard(node.name, now)
                self._note_warm(node)
        for metrics in self._tail.new():
            self._step(metrics)
        if self._views.is_due:
            view = self.view()
            self._views.write(view)
            self.watch.on_view(view)
        note = self.server.mend() if self.server else ""
        if note:
            self.watch.on_note(note)
        self.drills.act()

    def _note_warm(self, node: Node) -> None:
        if not self._warm_noted and node.beat and node.beat.warm_s:
            self._warm_noted = True
            self.watch.on_note(f"nursery ready after {node.beat.warm_s:.1f} s")

    def _step(self, metrics: StepMetrics) -> None:
        now = time.monotonic()
        if not self._tally.steps:
            threading.Thread(target=_warm_up, daemon=True).start()
            if metrics.step > 1 and self.attempt == 0:
                self.watch.on_note(f"continues after step {metrics.step - 1}")
        if self._limit and not self._until:
            self._until = metrics.step - 1 + self._limit
        self._tally.add(metrics)
        self.newest_step = max(self.newest_step, metrics.step)
        self.sight.stepped(metrics, now)
        if self.state in ("starting", "suspect"):
            self.state = "starting"
            self._first_step(metrics, now)
        self.watch.on_step(metrics)

    def _first_step(self, metrics: StepMetrics, now: float) -> None:
        """The first step of a start: a recovery is over."""
        self.enter("stepped")
        if not self.recoveries or self.recoveries[-1].stepped_s is not None:
            return
        incident = self.recoveries[-1].incident
        lost = max(0, incident.step - (metrics.step - 1))
        took = time.time() - incident.time_s
        self.recoverer.note(stepped_s=took, resumed_from=metrics.step - 1, steps_lost=lost)
        self.watch.on_note(f"recovered after {took:.1f} s: {lost} steps are done again")

    # -- the end

    def _obey_interrupts(self) -> None:
        count = self.interrupts.fresh()
        if not count or self.state in FINAL:
            return
        self.enter("stop")
        if count == 1:
            self.watch.on_note("stopping after this step, with a checkpoint; Ctrl-C again: at once")
            self.signal_ranks(signal.SIGTERM)
        else:
            self.kill_ranks()

    def signal_ranks(self, number: int) -> None:
        """Send a signal to all ranks of all nodes."""
        with self.place.together():
            for node in self.nodes:
                if node.ranks and node.state not in ("lost", "evicted", "left"):
                    self.tell(node, "signal", signal=number)

    def kill_ranks(self) -> None:
        """End all ranks at once; how they end from now on is our doing."""
        if self.killed_from is None:
            self.killed_from = len(self.nodes.ended)
        self.signal_ranks(signal.SIGKILL)

    def _end_nodes(self) -> None:
        with self.place.together():
            for node in self.nodes:
                if node.state not in ("evicted", "left"):
                    self.tell(node, "end")
                    node.happens("leave")
        if self._record is not None:
            self.place.remember(msgspec.structs.replace(self._record, over=True))
        self.place.close()

    def _ending(self, cause: Cause | None) -> tuple[Ended, Cause | None]:
        """How this invocation ended, and what it died of if it did."""
        if self.state != "interrupted" and not (
            self.interrupts.any and cause is not None and not cause.is_own
        ):
            return ("done" if cause is None else "failed"), cause
        if cause is None and any(r.code for r in self.nodes.ended):
            cause = self.sight.cause()
        return "interrupted", cause


def _natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts node-2 before node-10: neighbours by name are neighbours in the machine room."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)


def _warm_up() -> None:
    """Have what a fault will need in memory before it comes."""
    import engine.diagnose.run  # noqa: F401 - for its side effect
