"""A node's own check, as an order: fit, or what is wrong."""

import pytest

from engine.health.node import Visit
from engine.health.result import CheckResult, NodeReport
from engine.job import node_check
from engine.job.node_check import FIT, check_node
from engine.job.order import ExecutorTask, Order

TASK = ExecutorTask(node="n1", folder="", slots=1)
ORDER = Order(id="1", token=1, op="check")


def visited(*results: CheckResult):
    def visit(probe, wish) -> Visit:
        assert wish.level == "passive"
        return Visit(NodeReport(node="n1", machine="", profile="", level="passive", time_s=0.0,
                                seconds=0.0, results=results))  # fmt: skip

    return visit


def test_a_warning_is_no_reason_to_leave_an_error_is(monkeypatch):
    warn = CheckResult(status="warn", message="warm", check="gpu.temperature")
    broken = CheckResult(status="error", message="did not end", check="gpu.count", target="gpu0")
    monkeypatch.setattr(node_check, "visit", visited(warn))
    assert check_node(ORDER, TASK) == FIT
    monkeypatch.setattr(node_check, "visit", visited(warn, broken))
    assert check_node(ORDER, TASK) == "unfit: gpu.count gpu0: did not end"


@pytest.mark.multi
def test_this_machine_is_looked_at_for_real():
    assert check_node(ORDER, TASK).startswith((FIT, "unfit: "))
