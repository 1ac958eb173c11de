"""Check an allocation from start to end: a Redis, the agents, the conversation, and tidying up."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError, RecipeError
from engine.health.agent import Hello
from engine.health.fleet import Fleet, FleetReport, Plan, Say, check_fleet
from engine.health.launch import Started, Where, new_run, reachable_host, read_hosts, start
from engine.health.pods import find_pods
from engine.health.result import CheckResult
from engine.health.slurm import slurm_nodes, topology
from engine.health.suite import CHECKS, select

_REDIS_S = 5.0
_MOST_WORDS = 3


class Allocation(NamedTuple):
    """Which nodes, and how they are reached."""

    where: Where = "local"
    hosts: Path | None = None
    job: str = ""
    """Id of a Slurm job; empty: the allocation that this runs in."""
    agents: int = 4
    selector: str = ""
    """Labels of the pods of Kubernetes, as `app=train`."""
    namespace: str = ""
    redis: str = ""
    """URL of a Redis that all nodes reach; empty: start a private one here."""


def check_allocation(
    allocation: Allocation, plan: Plan, *, profiles: Path | None = None, say: Say
) -> FleetReport:
    """Check all nodes of an allocation; nothing is left running afterwards.

    RecipeError if the plan names checks that its level leaves out: no node is to blame for that.
    """
    select(CHECKS, level=plan.level, only=plan.only)
    nodes, switch_of, pods = find_nodes(allocation)
    with ExitStack() as stack:
        url = allocation.redis
        if url:
            Client(parse_url(url), patience_s=_REDIS_S).call(("PING",))  # before agents are started
        else:
            host = "" if allocation.where == "local" else reachable_host()
            url = stack.enter_context(EmbeddedRedis(host=host, durable=False)).url
        hello = Hello(
            redis=url, run=new_run(), profiles=str(profiles.resolve()) if profiles else ""
        )
        started = start(
            allocation.where, hello, nodes, job=allocation.job, pods=pods,
            namespace=allocation.namespace,
        )  # fmt: skip
        stack.callback(started.stop)
        say(f"started agents for {len(started.nodes)} nodes")
        client = Client(parse_url(url))
        stack.callback(client.close)
        fleet = Fleet(client, hello.run, started.nodes, gone=started.gone)
        try:
            found = check_fleet(fleet, started.nodes, plan, switch_of=switch_of, say=say)
        except MissingError as error:
            raise _nobody(error, started) from error
        return _with_complaints(found, started.said())


def _nobody(error: MissingError, started: Started) -> MissingError:
    """The error in the words of what started the agents; its remedy, where those have ended."""
    words: dict[str, str] = {}
    for node, why in {**started.said(), **started.gone()}.items():
        words.setdefault(why, why if node in why else f"{node}: {why}")
    shown = "; ".join([*words.values()][:_MOST_WORDS])
    more = f"; and {len(words) - _MOST_WORDS} more" if len(words) > _MOST_WORDS else ""
    what = f"{error.what}: {shown}{more}" if shown else error.what
    return MissingError(what, remedy=started.remedy() or error.remedy)


def _with_complaints(fleet: FleetReport, said: Mapping[str, str]) -> FleetReport:
    """Let silent nodes say why, where their starter wrote it down."""

    def told(r: CheckResult) -> CheckResult:
        why = said.get(r.target, "") if r.check == "group.silent" else ""
        is_new = why and why not in r.message
        return msgspec.structs.replace(r, message=f"{r.message}: {why}") if is_new else r

    return msgspec.structs.replace(fleet, group=tuple(map(told, fleet.group)))


def find_nodes(
    allocation: Allocation,
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Names of the nodes, the switch above each where that is known, and pods by node."""
    if allocation.where == "local":
        return [f"local-{i}" for i in range(allocation.agents)], {}, {}
    if allocation.where == "slurm":
        return slurm_nodes(allocation.job), topology(), {}
    if allocation.where == "k8s":
        if not allocation.selector:
            raise RecipeError(
                "--on k8s names no pods", remedy="give their labels with --selector app=NAME"
            )
        pod_of, rack_of = find_pods(allocation.selector, allocation.namespace)
        return list(pod_of), rack_of, pod_of
    if allocation.hosts is None:
        raise RecipeError("--on hosts names no nodes", remedy="give a file with --hosts FILE")
    nodes, switch_of = read_hosts(allocation.hosts)
    return nodes, switch_of, {}
