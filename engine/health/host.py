"""Passive checks of the host: what the kernel says of CPU, memory, disks, limits and time.

Nothing here loads the machine. Paths are the kernel's own; a value that is not there is skipped
with a word, not guessed.
"""

import re

from engine.errors import MissingError
from engine.health.look import Look, problem, settle
from engine.health.probe import number
from engine.health.result import CheckResult
from engine.units import show_bytes

_CPU = "/sys/devices/system/cpu"


def cores(look: Look) -> list[CheckResult]:
    """All CPUs are online, usable and not held back by their governor."""
    online, present = _cpu_list(look, "online"), _cpu_list(look, "present")
    if not present:
        raise MissingError("the kernel does not list CPUs", remedy="mount /sys in the container")
    bad = []
    wanted = look.profile.cpus or len(present)
    if len(online) < wanted:
        bad.append(
            problem(
                "fail",
                "node",
                f"{len(online)} of {wanted} CPUs online",
                action="reboot",
                remedy="bring them back with `chcpu -e`, or reboot and check the BIOS",
                measured=len(online),
                expected=wanted,
                unit="CPUs",
            )
        )
    nodes = [n for n in look.probe.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", n)]
    if nodes and len(nodes) < look.profile.numa_nodes:
        bad.append(
            problem(
                "fail",
                "node",
                f"{len(nodes)} of {look.profile.numa_nodes} NUMA nodes",
                remedy="check the BIOS setting (NPS, SNC) and that both sockets started",
                action="fix",
                measured=len(nodes),
                expected=look.profile.numa_nodes,
            )
        )
    bad += _governor(look)
    usable = look.probe.cpus()
    if online and usable < len(online) / 2:
        bad.append(
            problem(
                "warn",
                "node",
                f"only {usable} of {len(online)} CPUs may be used",
                remedy="give the job the whole node, or raise its CPU request",
                action="fix",
                measured=usable,
                expected=len(online),
                unit="CPUs",
            )
        )
    return settle(
        bad, f"{len(online)} CPUs online, {usable} usable", measured=len(online), unit="CPUs"
    )


def _governor(look: Look) -> list[CheckResult]:
    """A governor that keeps the clock low."""
    governor = look.probe.read(f"{_CPU}/cpu0/cpufreq/scaling_governor")
    if governor in ("powersave", "conservative") and _driver_obeys(look):
        return [
            problem(
                "warn",
                "node",
                f"CPU governor is {governor}",
                action="fix",
                remedy="run `cpupower frequency-set -g performance`",
                measured=governor,
                expected="performance",
            )
        ]
    return []


def _driver_obeys(look: Look) -> bool:
    """With intel_pstate or amd_pstate in active mode `powersave` is the normal governor."""
    driver = look.probe.read(f"{_CPU}/cpu0/cpufreq/scaling_driver") or ""
    return driver not in ("intel_pstate", "amd-pstate-epp")


def _cpu_list(look: Look, name: str) -> list[int]:
    """`0-3,8` as numbers."""
    found: set[int] = set()
    for part in set((look.probe.read(f"{_CPU}/{name}") or "").split(",")):
        ends = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part.strip())
        if ends and int(ends[2] or ends[1]) < 1 << 16:
            found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return sorted(found)


def memory(look: Look) -> list[CheckResult]:
    """All memory is there, enough is free, and it had no errors."""
    info = _meminfo(look)
    total, free = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    if not total:
        raise MissingError("/proc/meminfo cannot be read", remedy="mount /proc in the container")
    bad = []
    wanted = look.profile.memory_bytes
    if total < wanted * 0.97:  # firmware keeps up to 3 % for itself
        bad.append(
            problem(
                "fail",
                "node",
                f"{show_bytes(total)} of {show_bytes(wanted)} memory",
                remedy="look for a disabled DIMM in the BMC's log",
                action="rma",
                measured=total,
                expected=wanted,
                unit="B",
            )
        )
    if free < total * 0.05:
        bad.append(
            problem(
                "fail",
                "node",
                f"only {show_bytes(free)} of memory available",
                remedy="find the holder with `ps --sort=-rss`, or empty /dev/shm",
                action="fix",
                measured=free,
                expected=total * 0.05,
                unit="B",
            )
        )
    huge = info.get("HugePages_Total", 0) * info.get("Hugepagesize", 0)
    if huge > total * 0.5:
        bad.append(
            problem(
                "warn",
                "node",
                f"{show_bytes(huge)} are reserved as huge pages",
                action="fix",
                remedy="lower vm.nr_hugepages: ranks cannot use reserved pages",
                measured=huge,
                expected=total * 0.5,
                unit="B",
            )
        )
    return settle(
        bad + _edac(look),
        f"{show_bytes(total)}, {show_bytes(free)} available",
        measured=total,
        unit="B",
    )


def _edac(look: Look) -> list[CheckResult]:
    """What the memory controllers counted."""
    root = "/sys/devices/system/edac/mc"
    for name in look.probe.names(root):
        hard = number(look.probe.read(f"{root}/{name}/ue_count")) or 0
        soft = number(look.probe.read(f"{root}/{name}/ce_count")) or 0
        if hard:
            return [
                problem(
                    "fail",
                    name,
                    f"{hard:.0f} uncorrectable memory errors",
                    action="rma",
                    remedy="take the node out and replace the DIMM",
                    measured=hard,
                    expected=0,
                )
            ]
        if soft > look.profile.corrected_ecc:
            return [
                problem(
                    "warn",
                    name,
                    f"{soft:.0f} corrected memory errors",
                    action="watch",
                    remedy="plan to replace the DIMM",
                    measured=soft,
                    expected=look.profile.corrected_ecc,
                )
            ]
    return []


def _meminfo(look: Look) -> dict[str, int]:
    """/proc/meminfo in bytes; page counts as they are."""
    found = {}
    for line in (look.probe.read("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        value = number(rest)
        if value is not None:
            found[name] = int(value) * (1024 if rest.strip().endswith("kB") else 1)
    return found


def swap(look: Look) -> list[CheckResult]:
    """No memory is swapped out."""
    info = _meminfo(look)
    total = info.get("SwapTotal", 0)
    used = total - info.get("SwapFree", 0)
    bad = []
    if used > 1 << 30:
        bad.append(
            problem(
                "warn",
                "node",
                f"{show_bytes(used)} are swapped out",
                action="fix",
                remedy="run `swapoff -a`: a rank that is swapped stalls all others",
                measured=used,
                expected=1 << 30,
                unit="B",
            )
        )
    return settle(bad, "no swap in use" if total else "no swap", measured=used, unit="B")


def shm(look: Look) -> list[CheckResult]:
    """/dev/shm is large enough for loaders and NCCL."""
    space = look.probe.space("/dev/shm")
    if space is None:
        return [
            problem(
                "fail",
                "/dev/shm",
                "there is no /dev/shm",
                action="fix",
                remedy="mount a tmpfs there, e.g. `docker run --shm-size=64g`",
            )
        ]
    bad = []
    wanted = look.profile.shm_bytes
    if space.total_bytes < wanted:
        bad.append(
            problem(
                "fail",
                "/dev/shm",
                f"{show_bytes(space.total_bytes)}, {show_bytes(wanted)} are needed",
                remedy="start the container with --ipc=host or a larger --shm-size",
                action="fix",
                measured=space.total_bytes,
                expected=wanted,
                unit="B",
            )
        )
    elif space.free_bytes < space.total_bytes * 0.1:
        bad.append(
            problem(
                "warn",
                "/dev/shm",
                f"only {show_bytes(space.free_bytes)} free",
                action="fix",
                remedy="remove what dead jobs left in /dev/shm",
                measured=space.free_bytes,
                expected=space.total_bytes * 0.1,
                unit="B",
            )
        )
    return settle(bad, f"{show_bytes(space.total_bytes)}", measured=space.total_bytes, unit="B")


def limits(look: Look) -> list[CheckResult]:
    """Process limits allow pinned memory and many files."""
    found = look.probe.limits()
    has_rdma = bool(look.probe.names("/sys/class/infiniband"))
    bad = []
    lock = found.get("memlock", -1)
    if has_rdma and lock != -1:
        bad.append(
            problem(
                "fail",
                "memlock",
                f"locked memory is limited to {show_bytes(lock)}",
                action="fix",
                remedy="set `* - memlock unlimited` in limits.conf (systemd: LimitMEMLOCK)",
                measured=lock,
                expected="unlimited",
                unit="B",
            )
        )
    files = found.get("nofile", -1)
    if files != -1 and files < look.profile.nofile:
        bad.append(
            problem(
                "warn",
                "nofile",
                f"{files} open files are allowed",
                action="fix",
                remedy=f"run `ulimit -n {look.profile.nofile}` or raise LimitNOFILE",
                measured=files,
                expected=look.profile.nofile,
            )
        )
    tasks = found.get("nproc", -1)
    if tasks != -1 and tasks < 4096:
        bad.append(
            problem(
                "warn",
                "nproc",
                f"{tasks} processes are allowed",
                action="fix",
                remedy="raise nproc in limits.conf to 65536",
                measured=tasks,
                expected=4096,
            )
        )
    return settle(bad, f"{files if files != -1 else 'unlimited'} open files", measured=files)


def cgroup(look: Look) -> list[CheckResult]:
    """The container or job limits memory and CPU no lower than training needs."""
    root = "/sys/fs/cgroup"
    own = _own_cgroup(look)
    if own is None or look.probe.read(f"{root}/cgroup.controllers") is None:
        raise MissingError(
            "no unified cgroup hierarchy", remedy="use cgroup v2, or check limits by hand"
        )
    folder = f"{root}{own.rstrip('/')}"
    bad = []
    total = _meminfo(look).get("MemTotal", 0)
    cap = number(look.probe.read(f"{folder}/memory.max"))
    if cap is not None and total and cap < total * 0.5:
        bad.append(
            problem(
                "warn",
                "memory.max",
                f"{show_bytes(cap)} of {show_bytes(total)} may be used",
                remedy="raise the job's memory request",
                action="fix",
                measured=cap,
                expected=total * 0.5,
                unit="B",
            )
        )
    quota, _, period = (look.probe.read(f"{folder}/cpu.max") or "max").strip().partition(" ")
    allowed = number(quota)
    if allowed is not None:
        share = allowed / (number(period) or 100_000)
        if share < look.probe.cpus() * 0.9:
            bad.append(
                problem(
                    "warn",
                    "cpu.max",
                    f"{share:.1f} of {look.probe.cpus()} CPUs may be used",
                    remedy="remove the CPU quota: throttled ranks stall all others",
                    action="fix",
                    measured=share,
                    expected=look.probe.cpus(),
                    unit="CPUs",
                )
            )
    bad += _oom_kills(look, folder)
    return settle(bad, "no cgroup limit in the way")


def _own_cgroup(look: Look) -> str | None:
    """Our group's path in the unified hierarchy."""
    return next(
        (
            line[3:]
            for line in (look.probe.read("/proc/self/cgroup") or "").splitlines()
            if line.startswith("0::")
        ),
        None,
    )


def _oom_kills(look: Look, folder: str) -> list[CheckResult]:
    """What the group lost for lack of memory."""
    events = dict(
        line.split()[:2]
        for line in (look.probe.read(f"{folder}/memory.events") or "").splitlines()
        if len(line.split()) == 2
    )
    killed = number(events.get("oom_kill")) or 0
    if killed > 0:
        return [
            problem(
                "warn",
                "memory.events",
                f"{killed:.0f} processes were killed for memory",
                remedy="raise the job's memory request, or lower its use",
                action="watch",
                measured=int(killed),
                expected=0,
            )
        ]
    return []
