"""How long the process groups of a node take to start: rendezvous, groups, first collectives.

Ranks of this machine really start, over the Redis store and over TCPStore, with the groups of a 3D
layout (paper 3.5: start-up was 1,047 s on 2,048 GPUs before the store and the order of groups were
changed, and under 5 s afterwards).
"""

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.listen import listening_socket
from engine.comm.resp import Client
from engine.errors import EngineError, MissingError
from engine.health.collective import run_forked
from engine.health.look import Look, problem
from engine.health.profile import Bar
from engine.health.result import CheckResult
from engine.spec.layout import ParallelLayout
from engine.units import show_seconds

_RANKS = 8
_TIMEOUT_S = 60.0
_BAR = Bar(at_most=5.0, unit="s", source="stated by the paper for 2,048 GPUs")


class Started(NamedTuple):
    """Seconds that one rank took for each part of its start."""

    rendezvous: float
    """Until all ranks had met and the world group worked."""
    groups: float
    first: float
    """The first collective of every group."""

    @property
    def total(self) -> float:
        """From a process that has torch imported to one that can train."""
        return self.rendezvous + self.groups + self.first


def startup(look: Look) -> list[CheckResult]:
    """Ranks of this node meet, make the groups of a 3D layout and use each, within seconds."""
    try:
        import torch  # noqa: F401 - before the fork, so that ranks start at once

        import engine.comm.mesh
        import engine.comm.world  # noqa: F401 - before the fork, as torch
    except ImportError:
        raise MissingError("torch is not installed", remedy="run `pip install torch`") from None
    world = min(_RANKS, max(2, 4 * look.probe.cpus()))
    found = []
    try:
        with EmbeddedRedis(durable=False) as server:
            rows = start_ranks(world, {"store_url": server.url})
            calls = _calls(Client(server.local))
        found.append(judge(look, "redis", rows, f", {calls:,} store calls"))
    except MissingError as error:
        found.append(CheckResult(status="skip", target="redis", message=error.what,
                                 remedy=error.remedy))  # fmt: skip
    with listening_socket("127.0.0.1", 0) as socket:
        place = {"port": socket.getsockname()[1], "listen_fd": socket.fileno()}
        found.append(judge(look, "tcp", start_ranks(world, place), ""))
    return found


def judge(look: Look, store: str, rows: "Sequence[Started | str]", more: str) -> CheckResult:
    """The breakdown of the slowest rank against the bar, or why a rank did not start."""
    for rank, row in enumerate(rows):
        if isinstance(row, str):
            return problem(
                "fail", store, f"rank {rank}: {row}", action="fix",
                remedy="check that ranks of this node reach one another on lo",
            )  # fmt: skip
    slowest = max((row for row in rows if isinstance(row, Started)), key=lambda row: row.total)
    bar = look.profile.bar("comm.init") or _BAR
    holds = bar.holds(slowest.total)
    parts = ", ".join(
        f"{name} {show_seconds(value)}"
        for name, value in zip(("rendezvous", "groups", "first collectives"), slowest, strict=True)
    )
    return CheckResult(
        status="ok" if holds else "warn", target=store, measured=slowest.total, unit="s",
        message=f"{len(rows)} ranks in {show_seconds(slowest.total)}: {parts}{more}",
        expected=bar.shown, bar=bar.source, action="none" if holds else "watch",
        remedy="" if holds else "look for a stranger with `top`, then at host.names",
    )  # fmt: skip


def start_ranks(world: int, place: dict[str, Any]) -> "list[Started | str]":
    """Fork ranks that start over gloo; what each took, or why it could not."""
    rows = run_forked(world, _rank, (place,), backend="gloo", timeout_s=_TIMEOUT_S)
    return [Started(*row) if isinstance(row, tuple) else row for row in rows]


def layout_of(world: int) -> ParallelLayout:
    """tp and pp of 2 where they fit, the rest dp."""
    tp = 2 if world % 2 == 0 else 1
    pp = 2 if world % (2 * tp) == 0 else 1
    return ParallelLayout(tp=tp, pp=pp, dp=world // (tp * pp))


def _rank(rank: int, world: int, pipe: Connection, place: dict[str, Any]) -> None:
    import torch

    from engine.comm.collectives import barrier
    from engine.comm.mesh import build_mesh
    from engine.comm.world import Rendezvous, end_world, start_world

    torch.set_num_threads(1)
    meet = Rendezvous("127.0.0.1", place.get("port", 0))._replace(**place)
    try:
        begin = time.perf_counter()
        start_world(rank, world, meet, backend="gloo", timeout_s=_TIMEOUT_S)
        met = time.perf_counter()
        mesh = build_mesh(layout_of(world), rank, backend="gloo", timeout_s=_TIMEOUT_S)
        made = time.perf_counter()
        for group in mesh.groups():
            barrier(group)
        used = time.perf_counter()
        barrier(mesh.world)
        pipe.send((met - begin, made - met, used - made))
        end_world()
    except EngineError as error:
        pipe.send(error.what)
    os._exit(0)  # threads of gloo may be left


def _calls(client: Client) -> int:
    """Commands that the server has processed, without our question."""
    reply = client.call(("INFO", "stats"))[0]
    text = reply.decode() if isinstance(reply, bytes) else ""
    for line in text.splitlines():
        if line.startswith("total_commands_processed:"):
            return int(line.partition(":")[2])
    return 0
