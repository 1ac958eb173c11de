"""Look at this machine once: choose a profile, run the checks, remember counters, report.

The entry point of the room for the command and for the agent on each node of a fleet.
"""

import math
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from engine.errors import MissingError
from engine.health import gpu_links, network
from engine.health.look import Look, Memory, next_memory, read_memory, write_memory
from engine.health.nvml import GpuState
from engine.health.probe import Probe, RealProbe, uptime
from engine.health.profile import Profile, builtin_profiles, choose
from engine.health.recording import RecordedProbe, Recording, TeeProbe
from engine.health.result import CheckResult, NodeReport
from engine.health.runner import OnResults, run_here, run_isolated
from engine.health.suite import BUDGET_S, CHECKS, Level, select
from engine.units import show_bytes

_PACKAGES = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "msctl", "numpy")
_STATE_FILE = "selfcheck.json"


class Wish(NamedTuple):
    """What to look at and how; every field has a sensible default."""

    level: Level | None = None
    """None: passive, or what `only` needs."""
    only: tuple[str, ...] = ()
    profile: str = ""
    profiles: tuple[Profile, ...] = ()
    """Further machine types, before those that msctl knows."""
    window_s: float = 0.0
    folder: str = "/tmp"
    state: Path | None = None
    """Folder of counters between looks; None keeps none."""
    redis: str = ""
    record: bool = False

    @property
    def budget_s(self) -> float:
        """Longest run; checks that are named without a level are held by their deadlines only."""
        return math.inf if self.only and self.level is None else BUDGET_S[self.level or "passive"]

    @property
    def extent(self) -> str:
        """What a report says that was looked at: `light`, `only gpu.gemm`, `light, only gpu`."""
        named = ["only " + " ".join(self.only)] if self.only else []
        level = [self.level or "passive"] if self.level or not self.only else []
        return ", ".join([*level, *named])


class Visit(NamedTuple):
    """A report, and a recording if one was wished for."""

    report: NodeReport
    recording: Recording | None = None


class _Found(msgspec.Struct, frozen=True):
    """What only the process that read the machine knows."""

    memory: Memory
    profile: str
    machine: str
    facts: dict[str, str]
    recording: Recording | None = None


def visit(probe: RealProbe, wish: Wish, *, on_results: OnResults | None = None) -> Visit:
    """Check this machine; RecipeError if a check or profile that is wished for does not exist.

    Everything that may hang happens in a child process.
    """
    checks = select(CHECKS, level=wish.level, only=wish.only)
    if wish.profile:  # an unknown one is the caller's error, not one of every check
        choose((*wish.profiles, *builtin_profiles()), None, name=wish.profile)
    boot = uptime(probe)
    before = None
    if wish.state is not None:
        before = read_memory(wish.state / _STATE_FILE, boot_id=boot.boot_id)
    tee = TeeProbe(probe) if wish.record else None

    def make_look(hung: frozenset[str]) -> Look:
        asked: Probe = tee or probe
        asked = cast(Probe, _WithoutDriver(asked)) if "nvml" in hung else asked
        return Look(
            probe=asked, profile=_profile(asked, wish), before=before, uptime_s=boot.seconds,
            window_s=wish.window_s, folder=wish.folder, redis=wish.redis,
        )  # fmt: skip

    def state(look: Look) -> bytes:
        return msgspec.msgpack.encode(_found(look, boot.boot_id, tee))

    first = () if checks[0] is CHECKS[0] else CHECKS[:1]
    start = probe.now_s()
    ran = run_isolated(
        (*first, *checks), make_look, on_results=on_results, state=state,
        budget_s=wish.budget_s,
    )  # fmt: skip
    nothing = _Found(Memory(boot_id=boot.boot_id), wish.profile or "unknown", _cpu(probe), {})
    found = msgspec.msgpack.decode(ran.state, type=_Found) if ran.state else nothing
    if wish.state is not None and ran.state:
        write_memory(wish.state / _STATE_FILE, found.memory)
    report = NodeReport(
        node=probe.host(),
        machine=found.machine,
        profile=found.profile,
        level=wish.extent,
        boot_id=boot.boot_id,
        time_s=start,
        seconds=max(0.0, probe.now_s() - start),
        facts=found.facts,
        results=_wished(ran.results, bool(first)),
    )
    return Visit(report, found.recording)


def revisit(recording: Recording, wish: Wish, *, before: Memory | None = None) -> NodeReport:
    """Check a recorded machine, without the checks that would load this one instead."""
    probe = RecordedProbe(recording)
    checks = [c for c in select(CHECKS, level=wish.level, only=wish.only) if "load" not in c.needs]
    boot = uptime(probe)
    look = Look(probe=probe, profile=_profile(probe, wish), before=before,
                uptime_s=boot.seconds, window_s=wish.window_s, folder=wish.folder)  # fmt: skip
    return NodeReport(
        node=probe.host(), machine=machine(probe), profile=look.profile.name, level=wish.extent,
        boot_id=boot.boot_id, time_s=probe.now_s(), seconds=0.0, facts=facts(probe),
        results=run_here(checks, look),
    )  # fmt: skip


class _WithoutDriver:
    """A probe whose GPU driver did not answer and is not asked again."""

    def __init__(self, inner: Probe) -> None:
        self._inner = inner

    def gpus(self) -> GpuState:
        """Never."""
        raise MissingError("the GPU driver did not answer", remedy="treat the node as suspect")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _wished(results: Sequence[CheckResult], has_extra: bool) -> tuple[CheckResult, ...]:
    """Results without that of the first check, if nobody asked for it and it is well."""
    return tuple(results[1:] if has_extra and results[0].status == "ok" else results)


def _profile(probe: Probe, wish: Wish) -> Profile:
    known = (*wish.profiles, *builtin_profiles())
    if wish.profile:
        return choose(known, None, name=wish.profile)
    try:
        return choose(known, probe.gpus())
    except MissingError:
        return choose(known, None)


def _found(look: Look, boot_id: str, tee: TeeProbe | None) -> _Found:
    counters = gpu_links.counters(look) | network.counters(look)
    return _Found(
        memory=next_memory(look, boot_id, counters),
        profile=look.profile.name,
        machine=machine(look.probe),
        facts=facts(look.probe),
        recording=tee.recording() if tee is not None else None,
    )


def machine(probe: Probe) -> str:
    """What a node is, as `8 x NVIDIA H100 80GB HBM3, 192 CPUs, 2.00 TiB`."""
    try:
        present = probe.gpus().present
    except MissingError:
        present = ()
    gpus = f"{len(present)} x {present[0].name}" if present else "no GPU"
    return f"{gpus}, {_cpu(probe)}"


def _cpu(probe: Probe) -> str:
    total = ""
    for line in (probe.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            total = f", {show_bytes(int(line.split()[1]) * 1024)}"
    return f"{probe.cpus()} CPUs{total}"


def facts(probe: Probe) -> dict[str, str]:
    """Versions that must agree between the nodes of a job."""
    found = {
        "kernel": (probe.read("/proc/sys/kernel/osrelease") or "").strip(),
        "python": platform.python_version(),
    }
    try:
        state = probe.gpus()
        found |= {"driver": state.driver, "cuda": state.cuda}
        found["vbios"] = ", ".join(sorted({g.vbios for g in state.present if g.vbios}))
        found["gpu"] = ", ".join(sorted({g.name for g in state.present}))
    except MissingError:
        pass
    for device in probe.names(network.ROOT)[:1]:
        found["nic firmware"] = (probe.read(f"{network.ROOT}/{device}/fw_ver") or "").strip()
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {key: value for key, value in found.items() if value}


def listed(
    only: Sequence[str] = (), level: Level | None = None
) -> list[tuple[str, str, str, float, str]]:
    """Name, suite, level, deadline and meaning of every check, or of those up to a level."""
    return [
        (c.name, c.suite, c.level, c.deadline_s, c.about)
        for c in select(CHECKS, level=level or "full", only=only)
    ]
