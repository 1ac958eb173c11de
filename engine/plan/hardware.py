"""Clusters by the words in which published tables name them: a GPU, a kind of network.

Rates are per device and direction. A description says "per node" or "per GPU"; without one the
common network of that GPU generation is assumed, and the caller names the assumption.
"""

import re
from typing import NamedTuple

import msgspec

from engine.spec.cluster import ClusterSpec, DeviceSpec, LinkSpec
from engine.spec.presets import CLUSTERS, DEVICES


def _tera(**peaks: float) -> dict[str, float]:
    return {name: value * 1e12 for name, value in peaks.items()}


_H100_500W = msgspec.structs.replace(
    DEVICES["h100"], name="H100-96GB-500W", memory_bytes=96 * 10**9, memory_bytes_per_s=2.4e12
)
_B200 = msgspec.structs.replace(
    DEVICES["b200"], peak_flops_per_s=DEVICES["b200"].peak_flops_per_s | _tera(fp4=9000)
)
_GB200 = DeviceSpec(
    name="GB200",
    peak_flops_per_s=_tera(fp64=40, fp32=80, fp16=2500, bf16=2500, fp8=5000, fp4=10000),
    memory_bytes=186 * 10**9, memory_bytes_per_s=8.0e12, sustained=0.73, units=148,
)  # fmt: skip
_GB300 = msgspec.structs.replace(
    _GB200, name="GB300", memory_bytes=288 * 10**9,
    peak_flops_per_s=_tera(fp64=1.3, fp32=80, fp16=2500, bf16=2500, fp8=5000, fp4=15000),
)  # fmt: skip
_B300 = msgspec.structs.replace(
    _GB300, name="B300", peak_flops_per_s=_tera(fp32=75, fp16=2250, bf16=2250, fp8=4500, fp4=13500)
)


class Machine(NamedTuple):
    """A node type: the pattern of its GPU's name, the device, devices a node, link rates."""

    pattern: str
    device: DeviceSpec
    gpus_per_node: int
    intra: float
    inter: float


MACHINES = (
    Machine(r"GB300", _GB300, 72, 900e9, 50e9),
    Machine(r"GB200", _GB200, 72, 900e9, 50e9),
    Machine(r"B300", _B300, 8, 900e9, 100e9),
    Machine(r"B200", _B200, 8, 900e9, 50e9),
    Machine(r"H200", DEVICES["h200"], 8, 450e9, 50e9),
    Machine(r"H100.*(500 ?W|96 ?GB|Grand Teton)", _H100_500W, 8, 450e9, 50e9),
    Machine(r"H800", DEVICES["h100"], 8, 200e9, 50e9),
    Machine(r"H100", DEVICES["h100"], 8, 450e9, 50e9),
    Machine(r"MI300", DEVICES["mi300x"], 8, 448e9, 50e9),
    Machine(r"A800", DEVICES["a100"], 8, 200e9, 25e9),
    Machine(r"A100.*40|A100-40", DEVICES["a100-40"], 8, 300e9, 25e9),
    Machine(r"A100|Ampere", DEVICES["a100"], 8, 300e9, 25e9),
    Machine(r"V100", DEVICES["v100"], 8, 150e9, 3.125e9),
)
"""In order of matching: the more special name first."""

_NETWORKS = (
    (r"(\d+)\s*x\s*(?:OmniPath\s*)?(\d+)\s*Gb(?:/s)?.*", "cards"),
    (r"(\d+(?:\.\d+)?)\s*Tb/s.*per (?:host|node)", "tera"),
    (r"(\d+)\s*Gb/s[^,;]*per (?:host|node)", "node"),
    (r"(\d+)\s*Gb/s[^,;]*per GPU", "gpu"),
    (r"NDR\s*(\d+)", "gpu"),
)


def cluster_for(gpu: str, network: str, gpus: int) -> tuple[ClusterSpec, tuple[str, ...]] | None:
    """The cluster of a published run, and what had to be assumed; None for unknown hardware."""
    machine = next((m for m in MACHINES if re.search(m.pattern, gpu, re.IGNORECASE)), None)
    if machine is None or "TPU" in gpu:
        return None
    notes = []
    inter = network_bytes_per_s(network, machine.gpus_per_node)
    if inter is None:
        inter = machine.inter
        if gpus > machine.gpus_per_node:
            notes.append(f"network of {inter * 8 / 1e9:.0f} Gb/s per GPU")
    per_node = min(machine.gpus_per_node, max(1, gpus))
    cluster = ClusterSpec(
        name=f"{machine.device.name}-{machine.gpus_per_node}",
        nodes=max(1, -(-gpus // per_node)),
        gpus_per_node=per_node,
        device=machine.device,
        intra=LinkSpec(bytes_per_s=machine.intra, latency_s=4e-6),
        inter=LinkSpec(bytes_per_s=inter, latency_s=12e-6),
    )
    return cluster, tuple(notes)


def network_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """`8x200Gb/s per node`, `800 Gb/s per node`, `400Gb/s per GPU` as one device's share."""
    for pattern, kind in _NETWORKS:
        found = re.search(pattern, text, re.IGNORECASE)
        if not found:
            continue
        number = float(found[1])
        if kind == "cards":
            return number * float(found[2]) * 1e9 / 8 / gpus_per_node
        if kind == "tera":
            return number * 1e12 / 8 / gpus_per_node
        return number * 1e9 / 8 / (gpus_per_node if kind == "node" else 1)
    return None


def preset_of(device: DeviceSpec) -> ClusterSpec | None:
    """A preset with this device, if there is one."""
    return next((c for c in CLUSTERS.values() if c.device.name == device.name), None)
