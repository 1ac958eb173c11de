"""The self-check of a node, as an executor carries it out on order."""

import os
import subprocess
import sys

import msgspec

from engine.errors import EngineError
from engine.health.agent import Hello
from engine.health.node import Wish, visit
from engine.health.probe import RealProbe
from engine.health.result import bad
from engine.job.order import ExecutorTask, Order

FIT = "fit"


def check_node(order: Order, task: ExecutorTask) -> str:
    """`fit`, or what is wrong with this node; `agent` starts its part of a check of all nodes."""
    if order.op == "agent":
        return _start_agent(order, task)
    env = dict(os.environ)
    try:
        report = visit(RealProbe(env=env, node=task.node), Wish(level=order.level)).report
    except EngineError as error:
        return f"unfit: the check itself failed: {error.what}"
    if report.status not in ("fail", "error"):
        return FIT
    worst = bad(report.results)[0]
    return f"unfit: {worst.check} {worst.target}: {worst.message}"


def _start_agent(order: Order, task: ExecutorTask) -> str:
    """The same agent as `msctl selfcheck --on` starts; it ends by itself."""
    hello = Hello(redis=task.redis, run=order.run, node=task.node)
    agent = subprocess.Popen(
        [sys.executable, "-m", "msctl.agent"], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert agent.stdin is not None, "a pipe was asked for"
    agent.stdin.write(msgspec.json.encode(hello) + b"\n")
    agent.stdin.close()
    return "agent started"
