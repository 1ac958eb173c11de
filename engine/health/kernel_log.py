"""Read kernel log lines in each form that people have, and find what they say about hardware.

Times are seconds since boot, so an entry of an earlier boot can never drain a node; a caller
narrows further with a window. Forms: /dev/kmsg records, `dmesg --raw`, `dmesg`, `journalctl -k -o
short-monotonic`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.health.result import Action

_KMSG = re.compile(r"^\d+,\d+,(\d+),[^;]*;(.*)$")
_BRACKET = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(?:(?:\S+ )?kernel: )?(.*)$")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)$")
_SXID = re.compile(
    r"nvidia-nvswitch(\d+): SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),"
    r"\s*(Fatal|Non-fatal)?,?\s*(.*)$",
    re.IGNORECASE,
)
_MAX_LINES = 200_000
_MAX_LINE = 2_000


class LogLine(NamedTuple):
    """One kernel message; `at_s` counts from boot, -1 if the line does not say."""

    at_s: float
    text: str


class Xid(NamedTuple):
    """An error that the GPU driver (or, with a switch number, the NVSwitch driver) reported."""

    code: int
    pci: str
    at_s: float
    text: str
    switch: int = -1
    fatal: bool = False


def parse_log(text: str) -> tuple[LogLine, ...]:
    """Lines of a kernel log; continuation lines of /dev/kmsg are dropped."""
    lines = []
    for raw in text.splitlines()[-_MAX_LINES:]:
        if not raw or raw[0] == " ":
            continue
        record = _KMSG.match(raw)
        if record:
            lines.append(LogLine(int(record[1]) / 1e6, record[2][:_MAX_LINE]))
            continue
        bracket = _BRACKET.match(raw)
        if bracket:
            lines.append(LogLine(float(bracket[1]), bracket[2][:_MAX_LINE]))
        else:
            lines.append(LogLine(-1.0, raw[:_MAX_LINE]))
    return tuple(lines)


def within(lines: Iterable[LogLine], uptime_s: float, window_s: float) -> list[LogLine]:
    """Lines of the last `window_s` seconds (0: since boot)."""
    if window_s <= 0:
        return list(lines)
    return [line for line in lines if line.at_s < 0 or line.at_s >= uptime_s - window_s]


def find_xids(lines: Iterable[LogLine]) -> list[Xid]:
    """Every Xid and SXid, one per device, code and second: drivers repeat themselves."""
    seen: dict[tuple[str, int, int, bool], Xid] = {}
    for line in lines:
        gpu = _XID.search(line.text)
        if gpu:
            found = Xid(int(gpu[2]), normal_pci(gpu[1]), line.at_s, line.text)
        else:
            switch = _SXID.search(line.text)
            if switch is None:
                continue
            fatal = (switch[4] or "").lower() == "fatal"
            found = Xid(
                int(switch[3]), normal_pci(switch[2]), line.at_s, line.text, int(switch[1]), fatal
            )
        seen.setdefault((found.pci, found.code, int(found.at_s), found.switch >= 0), found)
    return list(seen.values())


def normal_pci(text: str) -> str:
    """`00000000:3B:00.0` and `0000:3b:00` as `0000:3b:00.0`."""
    parts = text.strip().lower().split(":")
    if len(parts) != 3:
        return text.strip().lower()
    device = parts[2] if "." in parts[2] else f"{parts[2]}.0"
    return f"{parts[0][-4:].rjust(4, '0')}:{parts[1]}:{device}"


class Pattern(NamedTuple):
    """A message of the kernel that speaks of sick hardware or a starved host."""

    name: str
    expression: re.Pattern[str]
    fail: bool
    message: str
    remedy: str
    action: Action


def _pattern(
    name: str, expression: str, *, fail: bool, message: str, remedy: str, action: Action
) -> Pattern:
    return Pattern(name, re.compile(expression, re.IGNORECASE), fail, message, remedy, action)


PATTERNS: tuple[Pattern, ...] = (
    _pattern(
        "mce",
        r"mce: \[Hardware Error\]|Machine check events logged|Machine Check Exception",
        fail=True,
        message="the CPU reported a machine check",
        remedy="take the node out and read `mcelog` or `ras-mc-ctl --errors` for the part",
        action="evict",
    ),
    _pattern(
        "memory",
        r"EDAC .*\bUE\b|Memory failure: .*(recovery|poison)|Uncorrected (memory )?error",
        fail=True,
        message="host memory had an uncorrectable error",
        remedy="take the node out and replace the DIMM that the line names",
        action="rma",
    ),
    _pattern(
        "lockup",
        r"(soft|hard) lockup|rcu_sched self-detected stall|hung_task|"
        r"blocked for more than \d+ seconds",
        fail=True,
        message="the kernel hung for seconds",
        remedy="reboot the node; if it comes again, replace it",
        action="reboot",
    ),
    _pattern(
        "panic",
        r"Kernel panic|BUG: unable to handle|general protection fault.*\bCPU\b|kernel BUG at",
        fail=True,
        message="the kernel hit a bug",
        remedy="reboot the node and report the trace to who keeps its kernel",
        action="reboot",
    ),
    _pattern(
        "filesystem",
        r"(EXT4|XFS|BTRFS)[- ].*(error|corrupt)|Remounting filesystem read-only",
        fail=True,
        message="a file system is damaged",
        remedy="take the node out and check the disk with `smartctl -a`",
        action="evict",
    ),
    _pattern(
        "disk",
        r"I/O error, dev |nvme\w*: (controller is down|I/O \d+ .*timeout)|Medium Error|"
        r"critical medium error",
        fail=True,
        message="a disk fails",
        remedy="take the node out and replace the disk that the line names",
        action="rma",
    ),
    _pattern(
        "pcie",
        r"AER: .*(Uncorrected|Fatal)|PCIe Bus Error: severity=Uncorrected|"
        r"pcieport .*DPC: containment",
        fail=True,
        message="a PCIe link had an uncorrectable error",
        remedy="reseat or replace the device that the line names",
        action="evict",
    ),
    _pattern(
        "thermal",
        r"CPU\d+: (Core|Package) temperature above threshold|thermal throttling",
        fail=False,
        message="the CPU throttled for heat",
        remedy="check fans and inlet temperature",
        action="watch",
    ),
    _pattern(
        "nic",
        r"mlx5_core .*(health compromised|device's health|Poll health.*failed|command.* timeout|"
        r"synd(rome)? 0x(?!0)|unsupported cable|High Temperature)",
        fail=True,
        message="a network card reports bad health",
        remedy="reset the card with `mlxfwreset`, else take the node out",
        action="evict",
    ),
    _pattern(
        "oom",
        r"Out of memory: Kill(ed)? process|oom-kill:|invoked oom-killer",
        fail=False,
        message="the kernel killed a process for lack of memory",
        remedy="lower host memory use of the job, or find the stranger with `ps --sort=-rss`",
        action="watch",
    ),
    _pattern(
        "nvrm",
        r"NVRM: .*(RmInitAdapter failed|GPU .* has fallen off the bus|rm_init_adapter failed)",
        fail=True,
        message="the GPU driver could not start a GPU",
        remedy="reboot the node; if it stays, replace the GPU",
        action="reboot",
    ),
)
"""The literal list of kernel messages that count; Xid and SXid have their own table in `xid.py`."""


class Match(NamedTuple):
    """A pattern, how often it was seen, and the last line that showed it."""

    pattern: Pattern
    times: int
    last: LogLine


def find_patterns(lines: Sequence[LogLine]) -> list[Match]:
    """Every pattern that occurs. A line that is an Xid counts there and not here."""
    found: dict[str, Match] = {}
    for line in lines:
        if "Xid (" in line.text:
            continue
        for pattern in PATTERNS:
            if pattern.expression.search(line.text):
                before = found.get(pattern.name)
                found[pattern.name] = Match(pattern, before.times + 1 if before else 1, line)
                break
    return list(found.values())
