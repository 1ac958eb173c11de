"""Check many nodes at once: each alone, all together, then neighbour by neighbour.

The leader's side. Agents (`agent.py`) do the work on the nodes; both speak through Redis, so that a
node that is cut off is seen by its silence. Nodes that fail by themselves take no part in pair
tests (paper 4.3: the test between hosts only follows when the one inside has passed).
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from engine.comm.resp import Client
from engine.errors import MissingError
from engine.health.agent import Done, Task, names
from engine.health.compare import digests, outliers, skew
from engine.health.look import problem
from engine.health.pairing import Bisection, Neighbours, Pair, halves, tournament
from engine.health.result import ORDER, CheckResult, NodeReport, Status, worst
from engine.health.suite import BUDGET_S, CHECKS, Level, select
from engine.spec.base import NonNegative, Noun, Ratio
from engine.units import show_bytes, show_seconds

_MARGIN_S = 5.0
_LEAST_S, _START_S = 240.0, 60.0
Say = Callable[[str], None]
Gone = Callable[[], Mapping[str, str]]


class PairRate(Noun, frozen=True, kw_only=True):
    """One test between nodes: its bandwidth, or why it failed."""

    nodes: tuple[str, ...]
    bytes_per_s: NonNegative = 0.0
    is_well: bool
    why: str = ""


class FleetReport(Noun, frozen=True, kw_only=True):
    """What is known of an allocation, bad nodes first."""

    seconds: NonNegative
    nodes: tuple[NodeReport, ...]
    group: tuple[CheckResult, ...] = ()
    """Findings that need more than one node: absence, version skew, outliers, pairs."""
    pairs: tuple[PairRate, ...] = ()
    unfit: tuple[str, ...] = ()
    """Nodes to leave out of the job."""
    rounds: int = 0
    past: dict[str, int] = msgspec.field(default_factory=dict)
    """Node -> how many looks of the last 30 days found it unfit, where that is remembered."""

    @property
    def status(self) -> Status:
        """The worst of all findings."""
        return (
            max(worst(self.group), *(n.status for n in self.nodes), key=ORDER.index)
            if self.nodes
            else worst(self.group)
        )


class Plan(Noun, frozen=True, kw_only=True):
    """What to do with an allocation."""

    level: Level | None = None
    only: tuple[str, ...] = ()
    profile: str = ""
    alone: bool = True
    """Check each node by itself."""
    pairs: bool = True
    """Test nodes with their neighbours."""
    bisect: bool = False
    """Test all nodes together, and halve what fails."""
    all_pairs: bool = False
    """Test every pair, not only neighbours: n - 1 rounds for n nodes, for the heat map."""
    size_bytes: int = 16 << 20
    slow_share: Ratio = 0.5
    """A pair below this share of the median of all pairs is slow: equal nodes spread less."""
    timeout_s: float = 10.0
    """Longest wait of one operation of a test between nodes."""
    backend: str = "gloo"
    come_s: float = 60.0
    warm_s: float = 120.0
    """Longest wait for a node to get ready for tests with others: it imports torch."""
    check_s: NonNegative = 0.0
    """Longest wait for what each node finds by itself; 0 = what its checks may take."""

    @property
    def patience_s(self) -> float:
        """How long a node that is well may take for its own checks, its start included."""
        if self.check_s:
            return self.check_s
        if not self.only and self.level in (None, "passive"):
            return _LEAST_S  # seconds, even where some checks hang
        budget = BUDGET_S[self.level] if self.level else math.inf
        named = sum(c.deadline_s for c in select(CHECKS, level=self.level, only=self.only))
        return max(_LEAST_S, _START_S + min(budget, named))


class Fleet:
    """A conversation with the agents of one run."""

    def __init__(
        self, client: Client, run: str, nodes: Sequence[str], *, gone: Gone = dict
    ) -> None:
        self._client, self._run = client, run
        self._nodes = list(dict.fromkeys(nodes))
        self._next = 0
        self.gone = gone
        """Nodes whose agent has ended, and why; nobody waits for those."""

    def gather(self, within_s: float) -> list[str]:
        """Wait for all agents that may still come; returns the nodes whose agent came."""
        end = time.monotonic() + within_s
        key = names(self._run, "")[0]
        while True:
            gone = self.gone().keys()  # asked first: an agent comes before it ends
            reply = self._client.call(("HKEYS", key))[0]
            came = (
                {k.decode() for k in reply if isinstance(k, bytes)}
                if isinstance(reply, list)
                else set()
            )
            if came | gone >= set(self._nodes) or time.monotonic() >= end:
                return [n for n in self._nodes if n in came]
            time.sleep(0.02)

    def ask(self, tasks: Mapping[str, Task], within_s: float) -> dict[str, Done]:
        """Give each node a task of one id; returns the answers that came in time.

        Nobody waits for nodes whose agent has ended.
        """
        ids = {task.id for task in tasks.values()}
        done = names(self._run, "")[2]
        batch = [
            ("RPUSH", names(self._run, n)[1], msgspec.json.encode(t)) for n, t in tasks.items()
        ]
        self._client.call(*batch)
        found: dict[str, Done] = {}
        end = time.monotonic() + within_s
        while len(found) < len(tasks) and (left := end - time.monotonic()) > 0:
            wait_s = min(2.0, max(0.05, left))
            gone = self.gone().keys()  # asked first: an agent answers before it ends
            reply = self._client.call(("BLPOP", done, round(wait_s, 2)), block_s=wait_s)[0]
            if isinstance(reply, list) and isinstance(reply[1], bytes):
                answer = msgspec.json.decode(reply[1], type=Done)
                if answer.id in ids:  # an answer that comes too late belongs to an earlier task
                    found[answer.node] = answer
            elif tasks.keys() <= found.keys() | gone:
                break
        return found

    def new_id(self, kind: str) -> str:
        """A name that no other task of the run has."""
        self._next += 1
        return f"{kind}-{self._next}"

    def dismiss(self) -> None:
        """Let all agents end."""
        end = msgspec.json.encode(Task(kind="end"))
        self._client.call(*(("RPUSH", names(self._run, n)[1], end) for n in self._nodes))


def check_fleet(
    fleet: Fleet,
    nodes: Sequence[str],
    plan: Plan,
    *,
    switch_of: Mapping[str, str] | None = None,
    say: Say = lambda text: None,
) -> FleetReport:
    """Check all nodes, then neighbours. Nodes without an agent or an answer are unfit."""
    start = time.monotonic()
    came = fleet.gather(plan.come_s)
    say(f"{len(came)} of {len(nodes)} nodes came")
    gone = fleet.gone()
    late = f"within {show_seconds(plan.come_s)}"
    if not came:  # that many nodes do not fail at once: the way to Redis does
        raise MissingError(
            f"none of {len(nodes)} nodes came" + ("" if gone.keys() >= set(nodes) else f" {late}"),
            remedy="check that nodes reach the Redis here (firewall), or give one with --redis URL",
        )
    group = [
        _silent(n, f"its agent did not start{f': {gone[n]}' if n in gone else f' {late}'}")
        for n in nodes
        if n not in came
    ]
    reports: list[NodeReport] = []
    if plan.alone:
        reports, silent = _alone(fleet, came, plan)
        group += silent + skew(reports) + outliers(reports) + digests(reports)
    unfit = {r.node for r in reports if r.status in ("fail", "error")}
    unfit |= {r.target for r in group if r.status == "fail"}
    fit = [n for n in came if n not in unfit]
    pairs: list[PairRate] = []
    rounds = 0
    if (plan.pairs or plan.bisect) and len(fit) > 1:
        fit, found = _ready(fleet, fit, plan)
        group += found
        unfit |= {r.target for r in found if r.status == "fail"}
    if plan.pairs and len(fit) > 1:
        say(f"testing {len(fit)} nodes with their neighbours")
        found, pairs, rounds = _neighbours(fleet, fit, plan, switch_of or {})
        group += found
        unfit |= {r.target for r in found if r.status == "fail" and "<->" not in r.target}
        fit = [n for n in fit if n not in unfit]
        if plan.all_pairs:
            pairs += _all_pairs(fleet, fit, plan, pairs, say)
    if plan.bisect and len(fit) > 1:
        say(f"testing {len(fit)} nodes together")
        group += _bisect(fleet, fit, plan)
    fleet.dismiss()
    order = sorted(reports, key=lambda r: (r.node not in unfit, -ORDER.index(r.status), r.node))
    return FleetReport(
        seconds=time.monotonic() - start,
        nodes=tuple(order),
        group=tuple(group),
        pairs=tuple(pairs),
        unfit=tuple(n for n in nodes if n in unfit),
        rounds=rounds,
    )


def _alone(
    fleet: Fleet, nodes: Sequence[str], plan: Plan
) -> tuple[list[NodeReport], list[CheckResult]]:
    """What each node finds by itself, and the nodes that did not say."""
    task = Task(
        kind="node", id=fleet.new_id("node"), level=plan.level, only=plan.only, profile=plan.profile
    )
    answers = fleet.ask(dict.fromkeys(nodes, task), plan.patience_s)
    silent, gone = [], fleet.gone()
    for node in nodes:
        if node not in answers or answers[node].report is None:
            late = (
                f"its agent ended: {gone[node]}"
                if node in gone
                else "its checks did not end in time"
            )
            why = answers[node].error if node in answers else late
            silent.append(_silent(node, why))
    return [a.report for a in answers.values() if a.report is not None], silent


def _ready(fleet: Fleet, nodes: Sequence[str], plan: Plan) -> tuple[list[str], list[CheckResult]]:
    """The nodes that can be tested with others; what keeps the rest from it."""
    task = Task(kind="warm", id=fleet.new_id("warm"))
    answers = fleet.ask(dict.fromkeys(nodes, task), plan.warm_s)
    found = []
    for node in nodes:
        if node not in answers:
            found.append(_silent(node, f"it was not ready within {show_seconds(plan.warm_s)}"))
        elif answers[node].error:
            left_out = CheckResult(
                check="pair.neighbour", target=node, status="skip", message=answers[node].error
            )
            found.append(left_out)
    out = {r.target for r in found}
    return [n for n in nodes if n not in out], found


def _silent(node: str, why: str) -> CheckResult:
    found = problem(
        "fail", node, why, action="evict", remedy="look at the node: it is down, cut off or wedged"
    )
    return msgspec.structs.replace(found, check="group.silent")


def _neighbours(
    fleet: Fleet, nodes: Sequence[str], plan: Plan, switch_of: Mapping[str, str]
) -> tuple[list[CheckResult], list[PairRate], int]:
    test = Neighbours(nodes, switch_of)
    rates: list[PairRate] = []
    while pairs := test.next_round():
        seen = run_groups(fleet, pairs, plan, known=[r.bytes_per_s for r in rates if r.is_well])
        rates += seen
        test.give({_pair(rate.nodes): rate.is_well for rate in seen})
    found = test.findings()
    results = []
    for node in found.bad:
        why = next((r.why for r in rates if node in r.nodes and not r.is_well), "")
        results.append(
            problem(
                "fail",
                node,
                f"fails with every neighbour: {why}",
                action="evict",
                remedy="take the node out; check its card, cable and switch port",
            )
        )
    for a, b in found.links:
        results.append(
            problem(
                "warn",
                f"{a}<->{b}",
                "fail together and pass with others",
                action="watch",
                remedy="test the pair again; check the path between",
            )
        )
    for node in found.unsure:
        results.append(
            problem(
                "error",
                node,
                "fails, and too few clean nodes are left to tell why",
                action="watch",
                remedy="test it together with known good nodes",
            )
        )
    if not results:
        well = statistics.median(r.bytes_per_s for r in rates)
        results.append(
            CheckResult(
                status="ok",
                message=f"{len(rates)} pairs well, median {show_bytes(well)}/s",
                measured=well,
                unit="B/s",
            )
        )
    return (
        [msgspec.structs.replace(r, check="pair.neighbour") for r in results],
        rates,
        found.rounds,
    )


def _pair(nodes: tuple[str, ...]) -> Pair:
    return nodes[0], nodes[1]


def run_groups(
    fleet: Fleet, groups: Sequence[tuple[str, ...]], plan: Plan, *, known: Sequence[float] = ()
) -> list[PairRate]:
    """One all-reduce in each group, side by side.

    Slow is what lags behind the median of this round's groups and of those `known` from before: the
    last rounds have few pairs, and mostly with suspects.
    """
    tasks: dict[str, Task] = {}
    round_id = fleet.new_id("group")
    for number, members in enumerate(groups):
        for node in members:
            tasks[node] = Task(
                kind="group",
                id=f"{round_id}.{number}",
                members=members,
                size_bytes=plan.size_bytes,
                timeout_s=plan.timeout_s,
                backend="nccl" if plan.backend == "nccl" else "gloo",
            )
    # meeting, warm-up and a collective may each take the whole time-out
    answers = fleet.ask(tasks, 3 * plan.timeout_s + _MARGIN_S)
    rates = [_rate_of(members, answers) for members in groups]
    well = [*known, *(r.bytes_per_s for r in rates if r.is_well)]
    middle = statistics.median(well) if len(well) > 1 else 0.0
    return [
        r
        if not r.is_well or r.bytes_per_s >= plan.slow_share * middle
        else msgspec.structs.replace(
            r,
            is_well=False,
            why=f"{show_bytes(r.bytes_per_s)}/s, others {show_bytes(middle)}/s",
        )
        for r in rates
    ]


def _rate_of(members: tuple[str, ...], answers: Mapping[str, Done]) -> PairRate:
    for node in members:
        answer = answers.get(node)
        why = "did not answer" if answer is None else answer.error or answer.wrong
        if why:
            return PairRate(nodes=members, is_well=False, why=f"{node}: {why}")
    return PairRate(
        nodes=members, is_well=True, bytes_per_s=min(answers[n].bytes_per_s for n in members)
    )


def _all_pairs(
    fleet: Fleet, nodes: Sequence[str], plan: Plan, known: Sequence[PairRate], say: Say
) -> list[PairRate]:
    """The pairs that the neighbour test left out, round by round."""
    seen = {frozenset(rate.nodes) for rate in known}
    rates: list[PairRate] = []
    for pairs in tournament(nodes):
        left = [pair for pair in pairs if frozenset(pair) not in seen]
        if left:
            well = [r.bytes_per_s for r in (*known, *rates) if r.is_well]
            rates += run_groups(fleet, left, plan, known=well)
    say(f"tested {len(rates)} more pairs")
    return rates


def _bisect(fleet: Fleet, nodes: Sequence[str], plan: Plan) -> list[CheckResult]:
    """Halve what fails; groups of a round run side by side, and what is slow once runs again."""
    search = Bisection(nodes)
    why: dict[tuple[str, ...], PairRate] = {}
    while groups := search.next_round():
        seen = _hold_together(fleet, groups, plan)
        again = tuple(g for g, rate in seen.items() if not rate.is_well and rate.bytes_per_s)
        if again:
            seen |= _hold_together(fleet, again, plan)
        why |= seen
        search.give({g: rate.is_well for g, rate in seen.items()})
    found = [_together(g, why[g]) for g in search.suspects]
    if not found:
        found = [CheckResult(status="ok", message=f"{len(nodes)} nodes together are well")]
    return [msgspec.structs.replace(r, check="group.bisect") for r in found]


def _together(group: tuple[str, ...], rate: PairRate) -> CheckResult:
    """A group that fails is unfit as it is; one that is only slow is to be looked at."""
    is_slow = bool(rate.bytes_per_s)
    return problem(
        "warn" if is_slow else "fail", " ".join(group),
        f"{len(group)} nodes together: {rate.why}", action="watch" if is_slow else "evict",
        remedy="look at the switches between their halves" if is_slow
        else "leave these nodes out and test again",
        measured=rate.bytes_per_s or None, unit="B/s",
    )  # fmt: skip


def _hold_together(
    fleet: Fleet, groups: Sequence[tuple[str, ...]], plan: Plan
) -> dict[tuple[str, ...], PairRate]:
    """Whether each group works, and no slower than its own halves side by side.

    The halves load nodes and network as much as the whole does, so they say what it should reach.
    """
    lenient = msgspec.structs.replace(plan, slow_share=0.0)
    parts = [half for g in groups if len(g) > 3 for half in halves([g])]
    reached = {r.nodes: r for r in run_groups(fleet, parts, lenient)} if parts else {}
    big = [g for g in groups if len(g) > 1]
    found = {g: PairRate(nodes=g, is_well=True) for g in groups}
    for rate in run_groups(fleet, big, lenient) if big else []:
        well = [r.bytes_per_s for h in halves([rate.nodes]) if (r := reached.get(h)) and r.is_well]
        middle = statistics.median(well) if well else 0.0
        if rate.is_well and rate.bytes_per_s < plan.slow_share * middle:
            told = f"{show_bytes(rate.bytes_per_s)}/s, their halves {show_bytes(middle)}/s"
            rate = msgspec.structs.replace(rate, is_well=False, why=told)
        found[rate.nodes] = rate
    return found
