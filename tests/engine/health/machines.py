"""Machines as recordings: a few healthy kinds, and changes that make them sick.

A kind is a handful of numbers from which a whole recording is made; a change (an entry of
sick.json) overlays it. So a sick machine is one line that says only what is wrong with it.
"""

import functools
import json
from pathlib import Path
from typing import Any

import msgspec

from engine.health.look import Look, Memory
from engine.health.nvml import Gpu, GpuState
from engine.health.probe import Ran, Space
from engine.health.profile import Profile, builtin_profiles, choose
from engine.health.recording import RecordedProbe, Recording
from engine.health.result import CheckResult

SICK = Path(__file__).with_name("sick.json")
UPTIME_S = 500_000.0
_GiB = 1 << 30

_GPU = {
    "vbios": "96.00.74.00.01",
    "ecc_on": True,
    "mig_on": False,
    "persistence": True,
    "compute_mode": 0,
    "sram_uncorrected": 0,
    "dram_uncorrected": 0,
    "corrected": 2,
    "aggregate_uncorrected": 0,
    "remap_corrected": 0,
    "remap_uncorrected": 0,
    "remap_pending": False,
    "remap_failed": False,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_replays": 3,
    "pstate": 0,
    "utilization": 0,
    "throttle": 1,
    "clock_sm": 345,
    "clock_sm_max": 1980,
    "temperature": 34,
    "temperature_slowdown": 95,
    "power_limit": 700.0,
    "power_default": 700.0,
    "memory_total": 80 * _GiB,
    "memory_used": 600 << 20,
    "processes": (),
}

KINDS: dict[str, dict[str, Any]] = {
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "count": 8,
        "links": 18,
        "fabric": 3,
        "rnics": 8,
        "gbps": 400,
    },
    "h100-roce": {
        "name": "NVIDIA H100 80GB HBM3",
        "count": 8,
        "links": 18,
        "fabric": 3,
        "rnics": 8,
        "gbps": 400,
        "layer": "Ethernet",
    },
    "h200": {
        "name": "NVIDIA H200",
        "count": 8,
        "links": 18,
        "fabric": 3,
        "rnics": 8,
        "gbps": 400,
        "gpu": {"memory_total": 141 * _GiB},
    },
    "b200": {
        "name": "NVIDIA B200",
        "count": 8,
        "links": 18,
        "fabric": 3,
        "rnics": 8,
        "gbps": 400,
        "gpu": {"power_limit": 1000.0, "power_default": 1000.0},
    },
    "a100": {
        "name": "NVIDIA A100-SXM4-80GB",
        "count": 8,
        "links": 12,
        "rnics": 8,
        "gbps": 200,
        "gpu": {"pcie_gen": 4, "pcie_gen_max": 4, "power_limit": 400.0, "power_default": 400.0},
    },
    "v100": {
        "name": "Tesla V100-SXM2-32GB",
        "count": 8,
        "links": 6,
        "gpu": {
            "pcie_gen": 3,
            "pcie_gen_max": 3,
            "power_limit": 300.0,
            "power_default": 300.0,
            "mig_on": None,
            "retired_pages": 0,
            "retired_pending": False,
            "remap_corrected": None,
            "remap_uncorrected": None,
            "remap_pending": None,
            "remap_failed": None,
        },
    },
    "l40s": {
        "name": "NVIDIA L40S",
        "count": 4,
        "rnics": 2,
        "gbps": 200,
        "layer": "Ethernet",
        "gpu": {
            "pcie_gen": 4,
            "pcie_gen_max": 4,
            "power_limit": 350.0,
            "power_default": 350.0,
            "mig_on": None,
        },
    },
    "t4": {
        "name": "Tesla T4",
        "count": 1,
        "gpu": {
            "pcie_width": 8,
            "pcie_width_max": 8,
            "pcie_gen": 3,
            "pcie_gen_max": 3,
            "power_limit": 70.0,
            "power_default": 70.0,
            "mig_on": None,
            "retired_pages": 0,
            "retired_pending": False,
            "remap_corrected": None,
            "remap_uncorrected": None,
            "remap_pending": None,
            "remap_failed": None,
        },
    },
    "cpu": {"count": 0},
}
"""Healthy machines by kind."""

_ENV = {"NCCL_IB_QPS_PER_CONNECTION": "4"}


def sick() -> list[dict[str, Any]]:
    """Entries of sick.json: name, base, change; check, target, status, action expected."""
    return json.loads(SICK.read_text())


def machine(kind: str, change: dict[str, Any] | None = None) -> tuple[Recording, Memory | None]:
    """A recording of a kind with a change laid over it, and the counters of an earlier look."""
    k, change = KINDS[kind], change or {}
    count = k["count"]
    gpus = [_gpu(k, i) for i in range(count)]
    files = _host_files() | _rnic_files(k) | _gpu_files(count)
    for index, values in change.get("gpus", {}).items():
        for i in range(count) if index == "all" else [int(index)]:
            gpus[i] = (
                _listed({"index": i, **values}) if "error" in values else gpus[i] | _listed(values)
            )
    if "gpus_seen" in change:
        gpus = gpus[: change["gpus_seen"]]
    for device, values in change.get("rnics", {}).items():
        for name, value in values.items():
            folder = (
                "" if name in ("fw_ver", "board_id") or name.startswith("device/") else "ports/1/"
            )
            files[f"/sys/class/infiniband/{device}/{folder}{name}"] = value
    for device in change.get("rnics_gone", ()):
        files = {p: t for p, t in files.items() if f"/{device}/" not in p}
    files |= change.get("files", {})
    info = {"MemTotal": 2 << 30, "MemAvailable": 1900 << 20, "SwapTotal": 0, "SwapFree": 0}
    info |= change.get("meminfo", {})  # kB
    files["/proc/meminfo"] = "\n".join(f"{n}: {v} kB" for n, v in info.items())
    state = {"driver": "550.90.07", "library": "12.550.90.07", "cuda": "12.4"} | change.get(
        "driver", {}
    )
    spaces = {
        p: {
            "total_bytes": 900 * _GiB,
            "free_bytes": 700 * _GiB,
            "total_inodes": 10**8,
            "free_inodes": 9 * 10**7,
        }
        for p in ("/", "/tmp", "/dev/shm", "/data")
    }
    for path, values in change.get("spaces", {}).items():
        spaces[path] = spaces.get(path, {}) | values if values is not None else None
    recording = Recording(
        host=kind,
        now_s=1.7e9,
        cpus=change.get("cpus", 192),
        files={p: t for p, t in files.items() if t is not None},
        spaces={p: msgspec.convert(s, Space) for p, s in spaces.items() if s},
        limits={"memlock": -1, "nofile": 1048576, "nproc": -1} | change.get("limits", {}),
        commands=_commands(k)
        | {
            c: Ran(code=0, out=o) if isinstance(o, str) else Ran(**o)
            for c, o in change.get("commands", {}).items()
        },
        env=_ENV | change.get("env", {}),
        gpus=None
        if not count or "no_gpus" in change
        else GpuState(gpus=tuple(msgspec.convert(g, Gpu) for g in gpus), **state),
        no_gpus=change.get("no_gpus", "NVML Shared Library Not Found"),
        kernel_log=_log(count)
        + "".join(f"[{UPTIME_S - 60:.6f}] {line}\n" for line in change.get("log", ())),
    )
    before = None
    if "before" in change:
        before = Memory(
            boot_id="b0",
            uptime_s=UPTIME_S - 3600,
            counters=change["before"],
            flaps_s={p: tuple(t) for p, t in change.get("flaps_s", {}).items()},
        )
    return recording, before


def look_at(kind: str, change: dict[str, Any] | None = None, **more: Any) -> Look:
    """A visit to a machine with the profile that fits it; `profile` changes what is expected."""
    recording, before = machine(kind, change)
    profile = choose(_profiles(), recording.gpus)
    profile = msgspec.structs.replace(profile, **more.pop("profile", {}))
    more = {"before": before, "uptime_s": UPTIME_S, "folder": "/data"} | more
    return Look(probe=RecordedProbe(recording), profile=profile, **more)


@functools.cache
def _profiles() -> tuple[Profile, ...]:
    return builtin_profiles()


def brief(results: list[CheckResult]) -> list[tuple[str, str, str]]:
    """Target, status and action of each result that is not well."""
    assert results, "a check says at least that all is well"
    assert all(r.remedy for r in results if r.status != "ok")
    return [(r.target, r.status, r.action) for r in results if r.status != "ok"]


def shim_text(recording: Recording) -> str:
    """The GPU state of a recording in the form that the NVML shim reads."""
    if recording.gpus is None:
        code = 18 if "differ" in recording.no_gpus else 9
        return f"init_error {code}\n"
    state = recording.gpus
    major, minor = state.cuda.split(".")
    lines = [
        f"count {len(state.gpus)}",
        f"driver {state.driver}",
        f"library {state.library}",
        f"cuda {int(major) * 1000 + int(minor) * 10}",
    ]
    for gpu in state.gpus:
        for name in Gpu.__struct_fields__:
            value = getattr(gpu, name)
            key = f"gpu{gpu.index}.{name}"
            if value is None or name == "index" or (name == "error" and not value):
                continue
            if name == "error":
                lines.append(f"{key} {15 if 'lost' in value else 999}")
            elif name == "links":
                lines.append(f"{key} {''.join('1' if up else '0' for up in value)}")
            elif name == "link_errors":
                lines += [f"{key}{n} {v}" for n, v in enumerate(value)]
            elif name == "processes":
                lines.append(f"{key} {','.join(map(str, value)) or 'none'}")
            else:
                lines.append(f"{key} {int(value) if isinstance(value, bool) else value}")
    return "\n".join(lines) + "\n"


def _listed(values: dict[str, Any]) -> dict[str, Any]:
    """`links: "1101"` as a tuple of booleans."""
    found = dict(values)
    if isinstance(found.get("links"), str):
        found["links"] = tuple(c == "1" for c in found["links"])
    return found


def _gpu(kind: dict[str, Any], index: int) -> dict[str, Any]:
    gpu = (
        _GPU
        | {
            "index": index,
            "name": kind["name"],
            "uuid": f"GPU-{index:08d}",
            "pci": f"0000:{0x10 + index:02x}:00.0",
        }
        | kind.get("gpu", {})
    )
    if kind.get("links"):
        gpu["links"] = (True,) * kind["links"]
        gpu["link_errors"] = (0,) * kind["links"]
    if kind.get("fabric"):
        gpu |= {"fabric": kind["fabric"], "fabric_status": 0}
    return gpu


def _gpu_files(count: int) -> dict[str, str]:
    files = {}
    for i in range(count):
        at = f"/sys/bus/pci/devices/0000:{0x10 + i:02x}:00.0"
        files |= {
            f"{at}/class": "0x030200",
            f"{at}/vendor": "0x10de",
            f"{at}/numa_node": str(i // 4),
        }
    if count:
        files |= {
            "/sys/module/nvidia/version": "550.90.07",
            "/sys/module/nvidia_peermem/version": "1",
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module 550.90.07",
        }
    return files


def _host_files() -> dict[str, str]:
    return {
        "/proc/sys/kernel/random/boot_id": "b0",
        "/proc/uptime": f"{UPTIME_S} 1.0",
        "/proc/sys/kernel/osrelease": "5.15.0-105-generic",
        "/proc/loadavg": "2.10 2.00 1.90 1/900 4242",
        "/proc/self/cgroup": "0::/system.slice/job",
        "/proc/self/mounts": "tank:/data /data nfs4 rw 0 0",
        "/sys/fs/cgroup/cgroup.controllers": "cpu memory",
        "/sys/fs/cgroup/system.slice/job/memory.max": "max",
        "/sys/fs/cgroup/system.slice/job/cpu.max": "max 100000",
        "/sys/fs/cgroup/system.slice/job/memory.events": "low 0\noom_kill 0",
        "/sys/devices/system/cpu/online": "0-191",
        "/sys/devices/system/cpu/present": "0-191",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq",
        "/sys/devices/system/node/node0/cpulist": "0-95",
        "/sys/devices/system/node/node1/cpulist": "96-191",
        "/sys/devices/system/edac/mc/mc0/ue_count": "0",
        "/sys/devices/system/edac/mc/mc0/ce_count": "4",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
        "/proc/1/stat": "1 (systemd) S 0",
        "/proc/77/stat": "77 (kworker/0:1) D 2",
    }


def _rnic_files(kind: dict[str, Any]) -> dict[str, str]:
    files = {}
    layer = kind.get("layer", "InfiniBand")
    for i in range(kind.get("rnics", 0)):
        root = f"/sys/class/infiniband/mlx5_{i}"
        at = f"{root}/ports/1"
        files |= {
            f"{root}/fw_ver": "28.39.2048",
            f"{root}/board_id": "MT_0000000838",
            f"{root}/node_guid": f"a088:c203:0015:{i:04x}",
            f"{root}/hca_type": "MT4129",
            f"{root}/device/current_link_width": "16",
            f"{root}/device/max_link_width": "16",
            f"{root}/device/current_link_speed": "32.0 GT/s PCIe",
            f"{root}/device/max_link_speed": "32.0 GT/s PCIe",
            f"{at}/state": "4: ACTIVE",
            f"{at}/phys_state": "5: LinkUp",
            f"{at}/rate": f"{kind['gbps']} Gb/sec (4X NDR)",
            f"{at}/link_layer": layer,
            f"{at}/lid": f"0x{i + 1:x}",
            f"{at}/sm_lid": "0x1",
            f"{at}/counters/link_downed": "0",
            f"{at}/counters/symbol_error": "0",
            f"{at}/hw_counters/out_of_sequence": "10",
        }
        if layer == "Ethernet":
            net = f"/sys/class/net/rdma{i}"
            files |= {
                f"{root}/device/net/rdma{i}/ifindex": str(i + 2),
                f"{net}/mtu": "9000",
                f"{net}/ecn/roce_np/enable/3": "1",
                f"{net}/ecn/roce_rp/enable/3": "1",
                f"{at}/gid_attrs/types/3": "RoCE v2",
                f"{at}/gids/3": f"0000:0000:0000:0000:0000:ffff:0a00:{i + 1:04x}",
            }
    return files


def _commands(kind: dict[str, Any]) -> dict[str, Ran]:
    found = {"chronyc -c tracking": "0A000001,ntp,2,1.0,0.000021,0.1,0.2,0,0,0,0,0,0,Normal"}
    if kind.get("fabric") or kind.get("links") == 12:
        found["systemctl is-active nvidia-fabricmanager"] = "active\n"
    for i in range(kind.get("rnics", 0)):
        found[f"ibv_devinfo -d mlx5_{i} -i 1"] = "\tport:\t1\n\t\tactive_mtu:\t\t4096 (5)\n"
        if kind.get("layer") == "Ethernet":
            found[f"mlnx_qos -i rdma{i}"] = (
                "PFC configuration:\n\tenabled     0   0   0   1   0   0   0   0\n"
            )
            found[f"mlxreg -d mlx5_{i} --reg_name ROCE_ACCL --get"] = (
                "roce_adp_retrans_en | 0x00000001\n"
            )
    return {command: Ran(code=0, out=out) for command, out in found.items()}


def _log(count: int) -> str:
    boot = "[    0.000000] Linux version 5.15.0-105-generic\n"
    return boot + (
        "[   12.345678] NVRM: loading NVIDIA UNIX Open Kernel Module 550.90.07\n" if count else ""
    )
