"""Check many nodes at once: each alone, all together, then neighbour by neighbour.

The leader's side. Agents (`agent.py`) do the work on the nodes; both speak through Redis, so that a
node that is cut off is seen by its silence. Nodes that fail by themselves take no part in pair
tests (paper 4.3: the test between hosts only follows when the one inside has passed).
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from engine.comm.resp import Client
from engine.health.agent import Done, Task, names
from engine.health.look import problem
from engine.health.pairing import Bisection, Neighbours, Pair
from engine.health.profile import quantity
from engine.health.result import ORDER, CheckResult, NodeReport, Status, worst
from engine.health.suite import Level
from engine.spec.base import NonNegative, Noun, Ratio
from engine.units import show_bytes, show_seconds

_OUTLIER = 0.8
_IGNORED_FACTS = ("vbios",)
Say = Callable[[str], None]


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

    level: Level = "passive"
    only: tuple[str, ...] = ()
    profile: str = ""
    pairs: bool = True
    bisect: bool = False
    size_bytes: int = 16 << 20
    slow_share: Ratio = 0.5
    """A pair below this share of the median of all pairs is slow: equal nodes spread less."""
    timeout_s: float = 5.0
    backend: str = "gloo"
    come_s: float = 60.0
    check_s: float = 240.0


class Fleet:
    """A conversation with the agents of one run."""

    def __init__(self, client: Client, run: str, nodes: Sequence[str]) -> None:
        self._client, self._run = client, run
        self._nodes = list(dict.fromkeys(nodes))
        self._next = 0

    def gather(self, within_s: float) -> list[str]:
        """Wait for all agents; returns the nodes whose agent came."""
        end = time.monotonic() + within_s
        key = names(self._run, "")[0]
        while True:
            reply = self._client.call(("HKEYS", key))[0]
            came = (
                {k.decode() for k in reply if isinstance(k, bytes)}
                if isinstance(reply, list)
                else set()
            )
            if came >= set(self._nodes) or time.monotonic() >= end:
                return [n for n in self._nodes if n in came]
            time.sleep(0.02)

    def ask(self, tasks: Mapping[str, Task], within_s: float) -> dict[str, Done]:
        """Give each node a task of one id; returns the answers that came in time."""
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
            reply = self._client.call(("BLPOP", done, round(wait_s, 2)), block_s=wait_s)[0]
            if isinstance(reply, list) and isinstance(reply[1], bytes):
                answer = msgspec.json.decode(reply[1], type=Done)
                if answer.id in ids:  # an answer that comes too late belongs to an earlier task
                    found[answer.node] = answer
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
    group = [
        _silent(n, f"its agent did not start within {show_seconds(plan.come_s)}")
        for n in nodes
        if n not in came
    ]
    task = Task(
        kind="node", id=fleet.new_id("node"), level=plan.level, only=plan.only, profile=plan.profile
    )
    answers = fleet.ask(dict.fromkeys(came, task), plan.check_s)
    reports = [a.report for a in answers.values() if a.report is not None]
    for node in came:
        if node not in answers or answers[node].report is None:
            why = answers[node].error if node in answers else "its checks did not end in time"
            group.append(_silent(node, why))
    group += skew(reports) + outliers(reports)
    unfit = {r.node for r in reports if r.status in ("fail", "error")}
    unfit |= {r.target for r in group if r.status == "fail"}
    fit = [n for n in came if n not in unfit]
    pairs: list[PairRate] = []
    rounds = 0
    if plan.pairs and len(fit) > 1:
        say(f"testing {len(fit)} nodes with their neighbours")
        found, pairs, rounds = _neighbours(fleet, fit, plan, switch_of or {})
        group += found
        unfit |= {r.target for r in found if r.status == "fail" and "<->" not in r.target}
        fit = [n for n in fit if n not in unfit]
    if plan.bisect and len(fit) > 1:
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
    answers = fleet.ask(tasks, 3 * plan.timeout_s + 10)
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


def _bisect(fleet: Fleet, nodes: Sequence[str], plan: Plan) -> list[CheckResult]:
    search = Bisection(nodes)
    while groups := search.next_round():
        big = [g for g in groups if len(g) > 1]
        seen = {r.nodes: r.is_well for r in run_groups(fleet, big, plan)} if big else {}
        search.give({g: seen.get(g, True) for g in groups})
    found = [
        problem(
            "fail",
            " ".join(g),
            f"{len(g)} nodes fail together",
            action="evict",
            remedy="leave these nodes out and test again",
        )
        for g in search.suspects
    ]
    if not found:
        found = [CheckResult(status="ok", message=f"{len(nodes)} nodes together are well")]
    return [msgspec.structs.replace(r, check="group.bisect") for r in found]


def skew(reports: Sequence[NodeReport]) -> list[CheckResult]:
    """Versions that differ between the nodes: the minority is named."""
    found = []
    for fact in sorted({f for r in reports for f in r.facts} - set(_IGNORED_FACTS)):
        values = {r.node: r.facts.get(fact, "absent") for r in reports}
        counts = Counter(values.values()).most_common()
        if len(counts) < 2:
            continue
        usual, most = counts[0]
        tie = most * 2 <= len(reports)
        for node, value in values.items():
            if value != usual:
                found.append(
                    msgspec.structs.replace(
                        problem(
                            "warn",
                            node,
                            f"{fact} {value}, most nodes have {usual}"
                            if not tie
                            else f"{fact} {value}, others have {usual}",
                            action="fix",
                            measured=value,
                            expected=usual,
                            bar="majority of the nodes",
                            remedy=f"install one version of {fact} on all nodes",
                        ),
                        check="group.skew",
                    )
                )
    return found


def outliers(reports: Sequence[NodeReport]) -> list[CheckResult]:
    """Measured rates far below the median of the fleet, so that unknown hardware is judged too."""
    rates: dict[str, dict[str, float]] = {}
    units: dict[str, str] = {}
    for report in reports:
        for r in report.results:
            if r.status == "ok" and r.unit.endswith("/s") and isinstance(r.measured, int | float):
                key = quantity(r.check, r.target)
                slowest = rates.setdefault(key, {})
                slowest[report.node] = min(
                    float(r.measured), slowest.get(report.node, float("inf"))
                )
                units[key] = r.unit
    found = []
    for key, by_node in rates.items():
        if len(by_node) < 4:  # with three, one of them is always at the edge
            continue
        middle = statistics.median(by_node.values())
        for node, rate in by_node.items():
            if rate < _OUTLIER * middle:
                found.append(
                    msgspec.structs.replace(
                        problem(
                            "warn",
                            node,
                            f"{key} at {rate / middle:.0%} of the fleet's median",
                            action="watch",
                            measured=rate,
                            expected=middle,
                            unit=units[key],
                            bar="median of the fleet",
                            remedy="test the node again when it is idle",
                        ),
                        check="group.outlier",
                    )
                )
    return found
