"""Passive checks of the host's disks, tasks, clock and kernel log.

As in `host.py`: nothing here loads the machine.
"""

from engine.errors import MissingError
from engine.health.kernel_log import find_patterns, within
from engine.health.look import Look, problem, settle
from engine.health.probe import number
from engine.health.result import CheckResult, Status
from engine.units import show_bytes

_NETWORK_DISKS = (
    "nfs", "nfs4", "lustre", "gpfs", "ceph", "fuse.glusterfs", "beegfs", "wekafs", "fuse.juicefs",
)  # fmt: skip
_SHOWN_TASKS = 4


def disk(look: Look) -> list[CheckResult]:
    """There is room on the file systems that a rank writes to."""
    bad, seen = [], []
    for path in dict.fromkeys(("/", "/tmp", look.folder)):
        space = look.probe.space(path)
        if space is None or not space.total_bytes:
            continue
        seen.append(f"{path} {show_bytes(space.free_bytes)}")
        if space.read_only and path != "/":
            bad.append(
                problem(
                    "fail",
                    path,
                    "is mounted read-only",
                    action="evict",
                    remedy="check the disk: a file system that is damaged is remounted like this",
                )
            )
        elif space.free_bytes < look.profile.disk_free_bytes and path != "/":
            bad.append(_no_room(path, space.free_bytes, look.profile.disk_free_bytes, "fail"))
        elif path == "/" and space.free_bytes < space.total_bytes * 0.02:
            bad.append(_no_room(path, space.free_bytes, space.total_bytes * 0.02, "fail"))
        if space.total_inodes and space.free_inodes < space.total_inodes * 0.02:
            bad.append(
                problem(
                    "fail",
                    path,
                    f"{space.free_inodes} free inodes",
                    action="fix",
                    remedy=f"remove small files below {path}",
                    measured=space.free_inodes,
                    expected=space.total_inodes * 0.02,
                )
            )
    return settle(bad, "free: " + ", ".join(seen))


def _no_room(path: str, free: float, wanted: float, status: Status) -> CheckResult:
    return problem(
        status,
        path,
        f"{show_bytes(free)} free, {show_bytes(wanted)} are needed",
        remedy=f"free space below {path}, old logs and core dumps first",
        action="fix",
        measured=free,
        expected=wanted,
        unit="B",
    )


def mounts(look: Look) -> list[CheckResult]:
    """Network file systems answer; one that hangs ends this check at its deadline."""
    remote = []
    for line in (look.probe.read("/proc/self/mounts") or "").splitlines():
        words = line.split()
        if len(words) > 2 and words[2] in _NETWORK_DISKS:
            remote.append(words[1])
    if not remote:
        raise MissingError("no network file system is mounted", remedy="mount the job's storage")
    bad = [
        problem(
            "fail",
            path,
            "does not answer",
            action="evict",
            remedy=f"remount it: `umount -l {path}; mount {path}`",
        )
        for path in remote
        if look.probe.space(path) is None
    ]
    return settle(bad, f"{len(remote)} network file systems answer", measured=len(remote))


def tasks(look: Look) -> list[CheckResult]:
    """No tasks hang in the kernel and no stranger loads the machine."""
    stuck, zombies = [], 0
    for pid in (n for n in look.probe.names("/proc") if n.isdigit()):
        stat = look.probe.read(f"/proc/{pid}/stat") or ""
        name, _, rest = stat.rpartition(")")
        state = rest.split()[:1]
        zombies += state == ["Z"]
        if state == ["D"]:
            stuck.append(f"{pid} {name.partition('(')[2]}")
    bad = []
    if len(stuck) > 8:
        bad.append(
            problem(
                "warn",
                "node",
                f"{len(stuck)} tasks wait in the kernel",
                action="watch",
                remedy="look for a hung disk or mount: `ps -eo pid,stat,wchan,cmd | grep ' D'`",
                measured=len(stuck),
                expected=8,
                evidence=", ".join(stuck[:_SHOWN_TASKS]),
            )
        )
    if zombies > 200:
        bad.append(
            problem(
                "warn",
                "node",
                f"{zombies} zombie processes",
                remedy="restart their parent or reboot",
                action="watch",
                measured=zombies,
                expected=200,
            )
        )
    load = number(look.probe.read("/proc/loadavg")) or 0.0
    if load > 4 * max(1, look.probe.cpus()):
        bad.append(
            problem(
                "warn",
                "node",
                f"load {load:g} on {look.probe.cpus()} CPUs",
                action="watch",
                remedy="find the stranger with `top`",
                measured=load,
                expected=4 * look.probe.cpus(),
            )
        )
    return settle(bad, f"load {load:g}, {len(stuck)} tasks wait in the kernel", measured=load)


def clock(look: Look) -> list[CheckResult]:
    """The clock ticks well and follows a time server."""
    source = look.probe.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    bad = []
    if source in ("hpet", "acpi_pm", "jiffies"):
        bad.append(
            problem(
                "warn",
                "clocksource",
                f"clock source is {source}",
                action="fix",
                remedy="boot with tsc=reliable; every timestamp costs a microsecond with this one",
                measured=source,
                expected="tsc",
            )
        )
    ran = look.probe.run(("chronyc", "-c", "tracking"), timeout_s=3)
    words = ran.out.strip().split(",") if ran is not None and ran.code == 0 else []
    offset = number(words[4]) if len(words) > 4 else None
    if offset is not None and abs(offset) > 0.1:
        hard = abs(offset) > 1.0
        bad.append(
            problem(
                "fail" if hard else "warn",
                "clock",
                f"{offset:+.3f} s from its time server",
                remedy="run `chronyc makestep` and check the time servers",
                action="fix",
                measured=abs(offset),
                expected=0.1,
                unit="s",
            )
        )
    elif words and words[-1].strip() == "Not synchronised":
        bad.append(
            problem(
                "warn",
                "clock",
                "follows no time server",
                action="fix",
                remedy="start chronyd or systemd-timesyncd",
            )
        )
    known = (
        f"{abs(offset) * 1e3:.2g} ms from its server"
        if offset is not None
        else "no time daemon to ask"
    )
    return settle(
        bad,
        f"{source or 'unknown'} clock, {known}",
        measured=offset,
        unit="s" if offset is not None else "",
    )


def kernel(look: Look) -> list[CheckResult]:
    """The kernel said nothing of machine checks, disks, PCIe, lock-ups or lack of memory."""
    bad = []
    for match in find_patterns(within(look.probe.kernel_log(), look.uptime_s, look.window_s)):
        p = match.pattern
        if look.tolerates(f"kernel:{p.name}"):
            continue
        bad.append(
            problem(
                "fail" if p.fail else "warn",
                p.name,
                p.message,
                remedy=p.remedy,
                action=p.action,
                measured=match.times,
                expected=0,
                evidence=match.last.text,
            )
        )
    return settle(bad, "nothing of concern in the kernel log")
