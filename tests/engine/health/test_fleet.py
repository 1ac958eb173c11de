"""The leader's side, against scripted agents: who is bad, what differs, what is slow."""

from engine.health.agent import Done
from engine.health.fleet import Plan, check_fleet, outliers, run_groups, skew
from engine.health.result import CheckResult, NodeReport


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

    def __init__(self, nodes, *, absent=(), mute=(), sick=(), bad=(), slow=(), links=()):
        self.nodes, self.absent, self.mute, self.sick = nodes, absent, mute, sick
        self.bad, self.slow, self.links = bad, slow, links
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


def test_a_node_that_goes_silent_is_unfit():
    _, found = check(mute=("n07",))
    assert found.unfit == ("n07",)
    assert any(r.check == "group.silent" and r.target == "n07" for r in found.group)


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


def test_the_minority_of_a_version_is_named():
    reports = [report(n) for n in NODES[:5]] + [report("odd", driver="535")]
    (found,) = skew(reports)
    assert (found.target, found.measured, found.expected) == ("odd", "535", "550")
    assert skew([report("a"), report("b")]) == []


def test_a_rate_far_below_the_fleets_median_is_an_outlier():
    reports = [report(n) for n in NODES[:5]] + [report("slow", rate=0.7e9)]
    (found,) = outliers(reports)
    assert (found.target, found.status) == ("slow", "warn")
    assert outliers(reports[-3:]) == []
