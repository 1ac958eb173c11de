"""The leader's side, against scripted agents: who is bad, what differs, what is slow."""

import time

import msgspec
import pytest

from engine.errors import MissingError
from engine.health.agent import Done, Task
from engine.health.fleet import Fleet, Plan, check_fleet, run_groups
from engine.health.result import CheckResult, NodeReport
from engine.health.suite import BUDGET_S


def report(node, *, status="ok", rate=1e9, **facts):
    results = (
        CheckResult(check="host.memory_rate", status="ok", measured=rate, unit="B/s", message=""),
        CheckResult(check="gpu.ecc", status=status, message="x", remedy="y"),
    )
    return NodeReport(
        node=node, machine="m", profile="p", level="passive", time_s=0, seconds=1,
        facts={"driver": "550", **facts}, results=results,
    )  # fmt: skip


class Scripted:
    """A fleet whose agents answer by rules instead of over the network."""

    def __init__(
        self,
        nodes,
        *,
        absent=(),
        mute=(),
        sick=(),
        bad=(),
        slow=(),
        links=(),
        torchless=(),
        gone=None,
    ):
        self.nodes, self.absent, self.mute, self.sick = nodes, absent, mute, sick
        self.bad, self.slow, self.links = bad, slow, links
        self.torchless, self.gone = torchless, lambda: gone or {}
        self.number, self.dismissed, self.asked = 0, False, []

    def gather(self, within_s):
        return [n for n in self.nodes if n not in self.absent]

    def new_id(self, kind):
        self.number += 1
        return f"{kind}-{self.number}"

    def ask(self, tasks, within_s):
        found = {}
        for node, task in tasks.items():
            if node in self.mute:
                continue
            if task.kind == "node":
                status = "fail" if node in self.sick else "ok"
                found[node] = Done(node=node, id=task.id, report=report(node, status=status))
                continue
            if task.kind == "warm":
                torchless = node in self.torchless
                error = "torch is not installed" if torchless else ""
                found[node] = Done(node=node, id=task.id, error=error)
                continue
            self.asked.append(task.members)
            broken = set(task.members) & set(self.bad) or task.members in self.links
            rate = 1e7 if set(task.members) & set(self.slow) else 1e9
            error = "timed out" if broken else ""
            found[node] = Done(
                node=node, id=task.id, bytes_per_s=0 if broken else rate, error=error
            )
        return found

    def dismiss(self):
        self.dismissed = True


NODES = [f"n{i:02d}" for i in range(16)]


def check(**rules):
    fleet = Scripted(NODES, **rules)
    found = check_fleet(fleet, NODES, Plan())
    assert fleet.dismissed
    return fleet, found


def test_a_healthy_fleet_takes_two_rounds_and_accuses_nobody():
    _, found = check()
    assert (found.status, found.unfit, found.rounds, len(found.pairs)) == ("ok", (), 2, 16)


def test_slow_lossy_and_dead_nodes_are_all_named():
    _, found = check(slow=("n03",), bad=("n08",), absent=("n12",))
    assert found.unfit == ("n03", "n08", "n12")
    assert found.status == "fail"
    assert found.rounds <= 4


def test_a_node_that_fails_alone_takes_no_part_in_pairs():
    fleet, found = check(sick=("n05",))
    assert found.unfit == ("n05",)
    assert not any("n05" in pair for pair in fleet.asked)
    assert found.nodes[0].node == "n05"


def test_when_nobody_comes_nobody_is_accused():
    with pytest.raises(MissingError, match="none of 16 nodes came within 60 s") as caught:
        check(absent=NODES)
    assert "--redis" in caught.value.remedy


def test_a_node_whose_agent_has_ended_says_why_and_not_how_long_it_was_waited_for():
    _, found = check(absent=("n03", "n04"), gone={"n03": "ssh: no route"})
    said = {r.target: r.message for r in found.group if r.check == "group.silent"}
    assert said == {
        "n03": "its agent did not start: ssh: no route",
        "n04": "its agent did not start within 60 s",
    }
    with pytest.raises(MissingError, match=r"none of 16 nodes came$"):
        check(absent=NODES, gone=dict.fromkeys(NODES, "x"))


class Came:
    """A client of which only who came is asked."""

    def __init__(self, *nodes):
        self.nodes = [n.encode() for n in nodes]

    def call(self, *commands):
        return [self.nodes]


def test_nobody_waits_for_agents_that_have_ended():
    fleet = Fleet(Came("n1"), "run", ["n1", "n2"], gone=lambda: {"n2": "ended"})
    assert fleet.gather(within_s=3600) == ["n1"]


class Ended(Came):
    """Nodes that answer nothing any more."""

    def call(self, *commands, block_s=0.0):
        return [None for _ in commands]


def test_nobody_waits_for_the_answer_of_an_agent_that_has_ended():
    fleet = Fleet(Ended(), "r", ["a", "b"], gone=lambda: {"a": "exit 1", "b": "killed"})
    task = Task(kind="node", id=fleet.new_id("node"))
    start = time.monotonic()
    assert fleet.ask({"a": task, "b": task}, within_s=60.0) == {}
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("plan", "least_s"),
    [
        (Plan(), 240.0),
        (Plan(level="light"), 240.0),
        (Plan(level="full"), BUDGET_S["full"] + 30),
        (Plan(only=("gpu.memory_test", "net.rnic_pairs")), 1200.0 + 30),
        (Plan(level="full", only=("host.cores",)), 240.0),
    ],
)
def test_a_node_that_is_well_has_time_for_all_its_checks(plan, least_s):
    assert least_s <= plan.patience_s <= least_s + 60
    assert msgspec.structs.replace(plan, check_s=8).patience_s == 8


def test_a_node_that_goes_silent_is_unfit():
    _, found = check(mute=("n07",))
    assert found.unfit == ("n07",)
    assert any(r.check == "group.silent" and r.target == "n07" for r in found.group)


def test_a_node_that_cannot_take_part_in_tests_with_others_is_skipped_and_not_accused():
    fleet, found = check(torchless=("n03",))
    assert found.unfit == ()
    (left,) = [r for r in found.group if r.status == "skip"]
    assert (left.target, left.message) == ("n03", "torch is not installed")
    assert not any("n03" in pair for pair in fleet.asked)


def test_a_bad_link_evicts_nobody():
    _, found = check(links=(("n04", "n05"),))
    assert found.unfit == ()
    assert [r.target for r in found.group if r.status == "warn"] == ["n04<->n05"]


def test_bisection_runs_when_wished():
    fleet = Scripted(NODES)
    found = check_fleet(fleet, NODES, Plan(pairs=False, bisect=True))
    assert [(r.check, r.status) for r in found.group] == [("group.bisect", "ok")]


def test_slow_is_measured_against_the_round():
    fleet = Scripted(NODES, slow=("n02",))
    rates = run_groups(fleet, [("n00", "n01"), ("n02", "n03"), ("n04", "n05")], Plan())
    assert [r.is_well for r in rates] == [True, False, True]
    assert "others" in rates[1].why


class OnlyAtSize(Scripted):
    """Groups of three or more with both culprits are slow, pairs are well."""

    def ask(self, tasks, within_s):
        found = super().ask(tasks, within_s)
        for node, task in tasks.items():
            if len(task.members) > 2 and {"n02", "n09"} <= set(task.members):
                found[node] = Done(node=node, id=task.id, bytes_per_s=1e8)
        return found


def test_what_is_slow_only_together_is_halved_down_to_the_smallest_group():
    found = check_fleet(OnlyAtSize(NODES), NODES, Plan(alone=False, bisect=True))
    assert found.unfit == ()
    (bad,) = [r for r in found.group if r.check == "group.bisect"]
    assert (bad.status, bad.action) == ("warn", "watch")
    assert "95.37 MiB/s, their halves 953.67 MiB/s" in bad.message
    assert bad.target.split() == NODES  # its halves are well by themselves


def test_a_bad_node_is_found_by_halving_alone():
    found = check_fleet(
        Scripted(NODES, bad=("n05",)), NODES, Plan(alone=False, pairs=False, bisect=True)
    )
    (bad,) = [r for r in found.group if r.check == "group.bisect"]
    assert "n05" in bad.target.split()
    assert len(bad.target.split()) == 2


def test_all_pairs_are_tested_when_wished():
    fleet = Scripted(NODES[:5])
    found = check_fleet(fleet, NODES[:5], Plan(all_pairs=True))
    tested = [frozenset(pair.nodes) for pair in found.pairs]
    assert len(tested) == len(set(tested)) == 10


def test_suites_can_be_left_out():
    fleet = Scripted(NODES, sick=("n05",))
    found = check_fleet(fleet, NODES, Plan(alone=False))
    assert found.nodes == ()
    assert found.unfit == ()
    assert len(found.pairs) == 16
