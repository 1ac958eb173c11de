"""The node's side of a check of many nodes; `msctl/agent.py` is its executable.

It takes tasks from its own queue in Redis and puts results into the run's; it ends when told to, or
when nobody has spoken to it for five minutes.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from engine.comm.resp import Client, parse_url
from engine.errors import EngineError
from engine.health.node import Wish, visit
from engine.health.probe import RealProbe
from engine.health.profile import load_profiles
from engine.health.result import NodeReport
from engine.health.suite import Level
from engine.spec.base import NonNegative, Noun, Size

_IDLE_S = 300.0
_SLICE_S = 5.0
_REPEATS = 8


class Hello(Noun, frozen=True, kw_only=True):
    """What an agent is told when it starts; without a node name it asks scheduler or host."""

    redis: str
    run: str
    node: str = ""
    profiles: str = ""


class Task(Noun, frozen=True, kw_only=True):
    """One thing to do."""

    kind: Literal["node", "warm", "group", "end"]
    """Check the node, make ready for tests between nodes, take part in one, or end."""
    id: str = ""
    level: Level | None = None
    only: tuple[str, ...] = ()
    profile: str = ""
    members: tuple[str, ...] = ()
    """Nodes of a group test, in order of rank."""
    size_bytes: Size = 0
    backend: Literal["gloo", "nccl"] = "gloo"
    timeout_s: NonNegative = 10.0


class Done(Noun, frozen=True, kw_only=True):
    """What came of a task on one node."""

    node: str
    id: str
    report: NodeReport | None = None
    bytes_per_s: NonNegative = 0.0
    error: str = ""
    wrong: str = ""


def names(run: str, node: str) -> tuple[str, str, str]:
    """Keys in Redis: who has come, this node's queue, the results of all."""
    return f"{run}/came", f"{run}/todo/{node}", f"{run}/done"


def serve(hello: Hello, node: str, env: Mapping[str, str]) -> None:
    """Come, work until told to end. Unreachable if Redis is lost for a minute.

    `env` is what a rank on this node would inherit.
    """
    client = Client(parse_url(hello.redis))
    came, todo, done = names(hello.run, node)
    client.call(("HSET", came, node, "here"))
    spoken = time.monotonic()
    while time.monotonic() - spoken < _IDLE_S:
        reply = client.call(("BLPOP", todo, _SLICE_S), block_s=_SLICE_S)[0]
        if not isinstance(reply, list) or not isinstance(reply[1], bytes):
            continue
        spoken = time.monotonic()
        task = msgspec.json.decode(reply[1], type=Task)
        if task.kind == "end":
            return
        client.call(("RPUSH", done, msgspec.json.encode(_do(hello, task, node, env))))


def _do(hello: Hello, task: Task, node: str, env: Mapping[str, str]) -> Done:
    if task.kind == "node":
        return _node(hello, task, node, env)
    return _warm(task, node) if task.kind == "warm" else _group(hello, task, node)


def _warm(task: Task, node: str) -> Done:
    """Import what tests between nodes need, which may take longer than one of them."""
    try:
        import engine.comm.scratch
        import engine.comm.store  # noqa: F401 - loaded once, before tasks come
        from engine.health.collective import make_ready
    except ImportError:
        return Done(node=node, id=task.id, error="torch is not installed")
    make_ready()
    return Done(node=node, id=task.id)


def _node(hello: Hello, task: Task, node: str, env: Mapping[str, str]) -> Done:
    try:
        known = load_profiles(Path(hello.profiles)) if hello.profiles else ()
        wish = Wish(level=task.level, only=task.only, profile=task.profile, profiles=known,
                    redis=hello.redis)  # fmt: skip
        probe = RealProbe(env=env, node=node)
        return Done(node=node, id=task.id, report=visit(probe, wish).report)
    except EngineError as error:
        return Done(node=node, id=task.id, error=f"{error.what}; {error.remedy}")


def _group(hello: Hello, task: Task, node: str) -> Done:
    """An all-reduce with the other members."""
    try:
        from engine.comm.scratch import ScratchGroup
        from engine.comm.store import RedisStore
        from engine.health.collective import measure_all_reduce
    except ImportError:
        return Done(node=node, id=task.id, error="torch is not installed")
    try:
        prefix = f"{hello.run}/{task.id}/"
        store = RedisStore(hello.redis, prefix=prefix, timeout_s=task.timeout_s)
        group = ScratchGroup(store, task.members.index(node), len(task.members),
                             backend=task.backend, timeout_s=task.timeout_s)  # fmt: skip
        found = measure_all_reduce(group, task.size_bytes, repeats=_REPEATS)
        return Done(node=node, id=task.id, bytes_per_s=found.bytes_per_s, wrong=found.wrong)
    except (EngineError, RuntimeError) as error:
        return Done(node=node, id=task.id, error=str(error).splitlines()[0][:300])
