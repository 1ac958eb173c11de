"""What a healthy machine of one type looks like: data, one TOML table per type.

`profiles.toml` beside this file holds what vendors state; `learn` writes the medians and spread of
a healthy fleet. A verdict names which of the two it used. With no profile a check still compares
equal parts of the node with one another.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.errors import RecipeError
from engine.health.bounded import read_bounded
from engine.health.nvml import GpuState
from engine.health.result import NodeReport
from engine.spec.base import Noun, Positive, Ratio, Size
from engine.spec.cluster import ClusterSpec
from engine.spec.convert import convert_section
from engine.spec.problem import Problem
from engine.spec.toml import dump_toml, parse_toml

_MAX_FILE = 1 << 20
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


class Bar(Noun, frozen=True, kw_only=True):
    """The least (or most) that a measured rate may be."""

    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    source: str = "stated"
    """`stated` by a vendor or site, or `learned from N nodes`."""

    def holds(self, value: float) -> bool:
        """Whether a measurement is within the bar."""
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)

    @property
    def shown(self) -> float | None:
        """The limit itself."""
        return self.at_least if self.at_least is not None else self.at_most


class Profile(Noun, frozen=True, kw_only=True):
    """One machine type. Zero and empty mean: not stated, so not checked."""

    name: str = "unknown"
    match: str = ""
    """Part of the GPU's name that selects this profile; empty for machines without a GPU."""
    gpus: Size = 0
    nvlinks: Size = 0
    fabric: bool = False
    """Whether an NVSwitch fabric must be registered and its manager must run."""
    pcie_gen: Size = 0
    pcie_width: Size = 0
    power_w: Size = 0
    ecc: bool = True
    mig: bool = False
    persistence: bool = True
    rnics: Size = 0
    rnic_gbps: Size = 0
    """Gb/s of one port."""
    link_layer: Literal["", "InfiniBand", "Ethernet"] = ""
    gpu_direct: bool = False
    mtu: Size = 0
    """Bytes: 4096 for InfiniBand, 1024 or 4096 active RoCE MTU."""
    cpus: Size = 0
    numa_nodes: Size = 0
    memory_bytes: Size = 0
    shm_bytes: Size = 1 << 30
    disk_free_bytes: Size = 10 << 30
    nofile: Size = 4096
    corrected_ecc: Size = 1000
    """Volatile corrected errors from which a GPU is watched."""
    nvlink_errors: Size = 0
    """New NVLink errors since the last look that are tolerated."""
    pcie_replays_per_h: Positive = 30.0
    port_errors_per_h: Positive = 12.0
    tolerance: Ratio = 0.10
    """How far a part may lie below the median of its equals."""
    ignore: tuple[str, ...] = ()
    """Findings that a site tolerates: `xid:94`, `sxid:20034`, or a check's name."""
    bars: dict[str, Bar] = msgspec.field(default_factory=dict)
    """By check and quantity, as `gpu.gemm/bf16`."""

    def bar(self, name: str) -> Bar | None:
        """The bar of a measured quantity."""
        return self.bars.get(name)


def builtin_profiles() -> tuple[Profile, ...]:
    """The machine types that msctl knows, most specific first."""
    text = Path(__file__).with_name("profiles.toml").read_text(encoding="utf-8")
    return _profiles(parse_toml(text, "profiles.toml"), "profiles.toml")


def load_profiles(path: Path) -> tuple[Profile, ...]:
    """Profiles of a TOML file, one table each; RecipeError names every wrong key."""
    try:
        text = read_bounded(path, _MAX_FILE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: cannot be read: {error}", remedy="give a TOML file of machine profiles"
        ) from error
    return _profiles(parse_toml(text, str(path)), str(path))


def _profiles(data: Mapping[str, Any], origin: str) -> tuple[Profile, ...]:
    made: list[Profile] = []
    problems: list[Problem] = []
    for name, table in data.items():
        filled = {"name": name, **table} if isinstance(table, Mapping) else table
        raw = filled.pop("bars", {}) if isinstance(filled, dict) else {}
        raw = raw if isinstance(raw, Mapping) else {"bars": raw}
        profile, wrong = convert_section(Profile, filled, name)
        bars: dict[str, Bar] = {}
        for key, value in raw.items():
            bars[key], found = convert_section(Bar, value, f"{name}.bars.{key}")
            wrong += found
        made.append(_with(profile, bars=bars))
        problems += wrong
    if problems:
        first, rest = problems[0], len(problems) - 1
        others = f" (and {rest} more)" if rest else ""
        raise RecipeError(f"{origin}: {first.what}{others}", remedy=first.remedy)
    return tuple(made)


def choose(profiles: Sequence[Profile], gpus: GpuState | None, *, name: str = "") -> Profile:
    """The profile of a machine: by name, else by its GPUs' name, else one that states nothing."""
    if name:
        for profile in profiles:
            if profile.name == name:
                return profile
        known = ", ".join(p.name for p in profiles)
        raise RecipeError(f"there is no machine profile {name!r}", remedy=f"use one of {known}")
    present = gpus.present if gpus else ()
    if not present:
        return Profile(name="unknown")
    called = present[0].name
    fits = [p for p in profiles if p.match and p.match in called]
    return max(fits, key=lambda p: len(p.match), default=Profile(name="unknown"))


def of_cluster(cluster: ClusterSpec, base: Profile) -> Profile:
    """A profile with what a cluster file says of a node: GPUs, GEMM and link rates."""
    share = cluster.device.sustained * (1 - base.tolerance)
    bars = dict(base.bars)
    for dtype in ("bf16", "fp8"):
        peak = cluster.device.peak_flops_per_s.get(dtype)
        if peak:
            bars[f"gpu.gemm/{dtype}"] = Bar(
                at_least=peak * share, unit="FLOP/s", source=cluster.name
            )
    bars["gpu.memory_rate"] = Bar(
        at_least=cluster.device.memory_bytes_per_s * share, unit="B/s", source=cluster.name
    )
    bars["comm.neighbour"] = Bar(
        at_least=cluster.inter.bytes_per_s * share, unit="B/s", source=cluster.name
    )
    return _with(base, name=cluster.name, gpus=cluster.gpus_per_node, bars=bars)


def learn(reports: Iterable[NodeReport], *, name: str, base: Profile) -> Profile:
    """A profile whose bars come from measurements of a healthy fleet.

    Only results that are `ok` count. A bar lies below the median by the larger of the profile's
    tolerance and three standard deviations (estimated from the median deviation, so that one sick
    node does not widen it).
    """
    values: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    nodes = set()
    for report in reports:
        nodes.add(report.node)
        for r in report.results:
            if r.status == "ok" and r.unit.endswith("/s") and isinstance(r.measured, int | float):
                values.setdefault(quantity(r.check, r.target), []).append(float(r.measured))
                units[quantity(r.check, r.target)] = r.unit
    bars = dict(base.bars)
    for key, seen in sorted(values.items()):
        middle = statistics.median(seen)
        spread = statistics.median(abs(v - middle) for v in seen) * _MAD_TO_SIGMA
        margin = max(base.tolerance * middle, 3 * spread)
        bars[key] = Bar(at_least=max(0.0, middle - margin), unit=units[key],
                        source=f"learned from {len(nodes)} nodes")  # fmt: skip
    if not values:
        raise RecipeError(
            "no measured rates in the reports, so nothing to learn",
            remedy="write them with `msctl selfcheck --level full --json` on healthy nodes",
        )
    return _with(base, name=name, bars=bars)


def quantity(check: str, target: str) -> str:
    """The name of a bar: targets of one kind (`gpu0 bf16`, `gpu1 bf16`) share it."""
    kind = target.split(" ", 1)[1] if " " in target else ""
    return f"{check}/{kind}" if kind else check


def dump_profile(profile: Profile) -> str:
    """A profile as a TOML file that `load_profiles` reads; what is not stated is left out."""
    default = Profile()
    table: dict[str, Any] = {}
    for field in Profile.__struct_fields__:
        value = getattr(profile, field)
        if field in ("name", "bars") or value == getattr(default, field):
            continue
        table[field] = list(value) if isinstance(value, tuple) else value
    table["bars"] = {
        key: {
            k: getattr(bar, k) for k in Bar.__struct_fields__ if getattr(bar, k) not in (None, "")
        }
        for key, bar in profile.bars.items()
    }
    return dump_toml({profile.name: table})


def _with(profile: Profile, **changes: Any) -> Profile:

    return msgspec.structs.replace(profile, **changes)
