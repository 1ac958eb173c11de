"""All checks, as one literal list, and which of them a level or a name selects.

To add one: write a function from a `Look` to results in the file of its subject, add a line here,
add a sick machine to `tests/engine/health/sick.json`, and run `python tools/generate.py`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from engine.errors import RecipeError
from engine.health import (
    collective,
    gpu,
    gpu_links,
    gpu_state,
    host,
    host_rate,
    host_system,
    init,
    network,
    network_rate,
    network_setup,
)
from engine.health.look import Look
from engine.health.result import CheckResult

Suite = Literal["node", "pair", "group"]
Level = Literal["passive", "light", "full"]
Source = Literal["nvml", "kernel log", "rdma", "disk", "load", "network", "cuda"]
"""What a check leans on; when one hangs, checks that lean on the same are not tried again."""

BUDGET_S: dict[Level, float] = {"passive": math.inf, "light": 58.0, "full": 1200.0}
"""Longest run of a level on one node; checks that are named without a level have none."""
LEVELS: tuple[Level, ...] = ("passive", "light", "full")
"""Each contains those before it: 2 s beside a running job, a minute in recovery, 10 to 20 min."""


class Check(NamedTuple):
    """One check: what it looks at and how long it may take."""

    name: str
    suite: Suite
    level: Level
    function: Callable[[Look], Sequence[CheckResult]]
    needs: tuple[Source, ...]
    deadline_s: float
    about: str


def _check(name: str, level: Level, function: Callable[[Look], Sequence[CheckResult]],
           *needs: Source, deadline_s: float = 10.0) -> Check:  # fmt: skip
    """A check of the node suite; its first docstring line says what it is about."""
    about = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return Check(name, "node", level, function, needs, deadline_s, about)


CHECKS: tuple[Check, ...] = (
    _check("node.machine", "passive", gpu_state.kind, "nvml"),
    _check("gpu.count", "passive", gpu_state.count, "nvml"),
    _check("gpu.driver", "passive", gpu_state.driver, "nvml"),
    _check("gpu.ecc", "passive", gpu_state.ecc, "nvml"),
    _check("gpu.remap", "passive", gpu_state.remap, "nvml"),
    _check("gpu.xid", "passive", gpu_state.xid, "kernel log"),
    _check("gpu.sxid", "passive", gpu_state.sxid, "kernel log"),
    _check("gpu.nvlink", "passive", gpu_links.nvlink, "nvml"),
    _check("gpu.pcie", "passive", gpu_links.pcie, "nvml"),
    _check("gpu.clocks", "passive", gpu_links.clocks, "nvml"),
    _check("gpu.temperature", "passive", gpu_links.temperature, "nvml"),
    _check("gpu.power", "passive", gpu_links.power, "nvml"),
    _check("gpu.memory", "passive", gpu_state.memory, "nvml"),
    _check("gpu.mode", "passive", gpu_state.mode, "nvml"),
    _check("gpu.fabric", "passive", gpu_links.fabric, "nvml"),
    _check("host.cores", "passive", host.cores),
    _check("host.memory", "passive", host.memory),
    _check("host.swap", "passive", host.swap),
    _check("host.shm", "passive", host.shm),
    _check("host.limits", "passive", host.limits),
    _check("host.cgroup", "passive", host.cgroup),
    _check("host.disk", "passive", host_system.disk, "disk", deadline_s=5.0),
    _check("host.mounts", "passive", host_system.mounts, deadline_s=5.0),
    _check("host.tasks", "passive", host_system.tasks),
    _check("host.clock", "passive", host_system.clock),
    _check("host.kernel", "passive", host_system.kernel, "kernel log"),
    _check("net.state", "passive", network.state, "rdma"),
    _check("net.errors", "passive", network.errors, "rdma"),
    _check("net.mtu", "passive", network.mtu, "rdma"),
    _check("net.card", "passive", network.card, "rdma"),
    _check("net.gid", "passive", network_setup.gid, "rdma"),
    _check("net.congestion", "passive", network_setup.congestion, "rdma"),
    _check("net.retransmit", "passive", network_setup.retransmit, "rdma"),
    _check("net.spread", "passive", network_setup.spread, "rdma"),
    _check("net.gpu_direct", "passive", network_setup.gpu_direct, "rdma"),
    _check("gpu.strangers", "light", gpu_state.strangers, "nvml"),
    _check("host.names", "light", host_rate.names, "network", deadline_s=15.0),
    _check("host.gemm", "light", host_rate.gemm, "load", deadline_s=60.0),
    _check("host.each_core", "light", host_rate.each_core, "load", deadline_s=60.0),
    _check("host.memory_rate", "light", host_rate.memory_rate, "load", deadline_s=60.0),
    _check("host.disk_rate", "light", host_rate.disk_rate, "disk", "load", deadline_s=60.0),
    _check("gpu.gemm", "light", gpu.gemm, "cuda", "load", deadline_s=120.0),
    _check("gpu.memory_rate", "light", gpu.memory_rate, "cuda", "load", deadline_s=60.0),
    _check("gpu.h2d", "light", gpu.from_host, "cuda", "load", deadline_s=60.0),
    _check("gpu.d2h", "light", gpu.to_host, "cuda", "load", deadline_s=60.0),
    _check("gpu.p2p", "light", gpu.peer_paths, "cuda", "load", deadline_s=60.0),
    _check("gpu.memory_test", "full", gpu.memory, "cuda", "load", deadline_s=600.0),
    _check("comm.node", "light", collective.node, "load", "cuda", deadline_s=120.0),
    _check("comm.init", "light", init.startup, "load", "network", deadline_s=150.0),
    _check("net.loopback", "full", network_rate.loopback, "rdma", deadline_s=300.0),
    _check("net.rnic_pairs", "full", network_rate.rnic_pairs, "rdma", deadline_s=600.0),
)
"""Every check of a node, in the order in which they run; pairs and groups are in `fleet.py`."""


def select(
    checks: Sequence[Check], *, level: Level | None = None, only: Iterable[str] = ()
) -> list[Check]:
    """Checks up to a level, or those of them that are named.

    A name is `gpu.ecc`, its last word, or `gpu` for all of them. Without a level a name means its
    least demanding checks: `gpu` those that are passive, `gpu.gemm` the one that is light.
    RecipeError if a name fits no check, or none up to the level.
    """
    wanted = list(only)
    if not wanted:
        return [c for c in checks if _depth(c) <= LEVELS.index(level or LEVELS[0])]
    chosen: set[str] = set()
    for name in wanted:
        found = [c for c in checks if _fits(c, name)]
        if not found:
            raise RecipeError(
                f"there is no check {name!r}", remedy="see all with msctl selfcheck --list"
            )
        lowest = min(map(_depth, found))
        allowed = lowest if level is None else LEVELS.index(level)
        if lowest > allowed:
            raise RecipeError(
                f"--level {level} leaves out {name!r}, which needs --level {LEVELS[lowest]}",
                remedy=f"give --level {LEVELS[lowest]}, or --only {name} without a level",
            )
        chosen |= {c.name for c in found if _depth(c) <= allowed}
    return [c for c in checks if c.name in chosen]


def _depth(check: Check) -> int:
    """How much of a machine a check takes: the place of its level among all."""
    return LEVELS.index(check.level)


def _fits(check: Check, name: str) -> bool:
    return (
        check.name == name or check.name.startswith(f"{name}.") or check.name.endswith(f".{name}")
    )
