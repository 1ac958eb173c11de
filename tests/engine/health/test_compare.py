"""Nodes against one another: the minority is named."""

from engine.health.compare import digests, outliers, skew
from engine.health.result import CheckResult, NodeReport

NODES = [f"n{i:02d}" for i in range(16)]


def report(node, *, rate=1e9, digest="", **facts):
    results = (
        CheckResult(check="host.memory_rate", status="ok", measured=rate, unit="B/s", message=""),
        CheckResult(check="gpu.gemm", target="gpu0 bf16", status="ok", evidence=digest, message=""),
    )
    return NodeReport(
        node=node, machine="m", profile="p", level="passive", time_s=0, seconds=1,
        facts={"driver": "550", **facts}, results=results,
    )  # fmt: skip


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


def test_a_node_that_computes_other_bits_is_named():
    same = [report(n, digest="aa") for n in NODES[:3]]
    assert digests(same) == []
    (found,) = digests([*same, report("wrong", digest="bb")])
    assert (found.target, found.status, found.action) == ("wrong", "fail", "rma")
    assert (found.measured, found.expected) == ("bb", "aa")


def test_two_nodes_that_disagree_cannot_be_told_apart():
    found = digests([report("a", digest="aa"), report("b", digest="bb")])
    assert [(r.target, r.status) for r in found] == [("a", "error"), ("b", "error")]
    assert digests([report("a"), report("b")]) == []
