"""Check an allocation from start to end: a Redis, the agents, the conversation, and tidying up."""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client, parse_url
from engine.errors import RecipeError
from engine.health.agent import Hello
from engine.health.fleet import Fleet, FleetReport, Plan, Say, check_fleet
from engine.health.launch import Where, new_run, reachable_host, read_hosts, slurm_nodes, start


class Allocation(NamedTuple):
    """Which nodes, and how they are reached."""

    where: Where = "local"
    hosts: Path | None = None
    job: str = ""
    agents: int = 4
    redis: str = ""
    """URL of a Redis that all nodes reach; empty: start a private one here."""


def check_allocation(
    allocation: Allocation, plan: Plan, *, profiles: Path | None = None, say: Say
) -> FleetReport:
    """Check all nodes of an allocation; nothing is left running afterwards."""
    nodes: list[str] = []
    switch_of: dict[str, str] = {}
    if allocation.where == "hosts":
        if allocation.hosts is None:
            raise RecipeError("--on hosts names no nodes", remedy="give a file with --hosts FILE")
        nodes, switch_of = read_hosts(allocation.hosts)
    elif allocation.where == "slurm":
        nodes = slurm_nodes(allocation.job)
    with ExitStack() as stack:
        url = allocation.redis
        if not url:
            host = "" if allocation.where == "local" else reachable_host()
            url = stack.enter_context(EmbeddedRedis(host=host, durable=False)).url
        hello = Hello(
            redis=url, run=new_run(), profiles=str(profiles.resolve()) if profiles else ""
        )
        started = start(
            allocation.where, hello, count=allocation.agents, hosts=nodes, job=allocation.job
        )
        stack.callback(started.stop)
        say(f"started agents for {len(started.nodes)} nodes")
        client = Client(parse_url(url))
        stack.callback(client.close)
        fleet = Fleet(client, hello.run, started.nodes)
        return check_fleet(fleet, started.nodes, plan, switch_of=switch_of, say=say)
