"""What a check is given: the probe, what is expected, and what the last look saw.

Counters (link flaps, replays, symbol errors) only mean something as a difference, so every look
leaves its counters behind for the next. A state file of another boot, or a counter that went back,
is no base.
"""

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.errors import MissingError
from engine.health.bounded import read_bounded
from engine.health.probe import Probe
from engine.health.profile import Profile
from engine.health.result import Action, CheckResult, Measure, Status
from engine.spec.base import NonNegative, Noun, Size

_MAX_STATE = 16 << 20
_MIN_WINDOW_S = 60.0
_SICK_DISK = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)


class Memory(Noun, frozen=True, kw_only=True):
    """Counters of one look, and how often a link went down lately."""

    boot_id: str = ""
    uptime_s: NonNegative = 0.0
    counters: dict[str, Size] = msgspec.field(default_factory=dict)
    flaps_s: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """Seconds of uptime at which a port was seen to have flapped."""


class Look(NamedTuple):
    """One visit to one machine."""

    probe: Probe
    profile: Profile
    before: Memory | None = None
    uptime_s: float = 0.0
    window_s: float = 0.0
    """How far back the kernel log counts; 0 is since boot."""
    folder: str = "/tmp"
    """Where disk checks may write."""
    redis: str = ""
    """URL of the job's Redis, for clock and name checks; empty if there is none."""

    def since(self, counter: str, value: int) -> tuple[int, float] | None:
        """Growth of a counter and the hours that it took; None without a base to compare with."""
        if self.before is None or counter not in self.before.counters:
            return None
        grown = value - self.before.counters[counter]
        seconds = max(_MIN_WINDOW_S, self.uptime_s - self.before.uptime_s)
        return (grown, seconds / 3600) if grown >= 0 else None

    def tolerates(self, *names: str) -> bool:
        """Whether the site's profile says to leave a finding alone."""
        return any(name in self.profile.ignore for name in names)


def problem(
    status: Status, target: str, message: str, *, remedy: str, action: Action, **more: Any
) -> CheckResult:
    """A result that is not well; `more` holds measured, expected, unit, bar, evidence."""
    return CheckResult(
        status=status, target=target, message=message, remedy=remedy, action=action, **more
    )


def settle(
    problems: Sequence[CheckResult],
    well: str,
    *,
    measured: Measure = None,
    expected: Measure = None,
    unit: str = "",
) -> list[CheckResult]:
    """The problems, or one result that says what was found well."""
    if problems:
        return list(problems)
    return [CheckResult(status="ok", message=well, measured=measured, expected=expected, unit=unit)]


def read_memory(path: Path, *, boot_id: str) -> Memory | None:
    """The last look of this boot; None if there is none or it cannot be understood."""
    try:
        memory = msgspec.json.decode(read_bounded(path, _MAX_STATE), type=Memory)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return memory if memory.boot_id == boot_id else None


def check_state(folder: Path) -> None:
    """Make the folder of counters. MissingError if that cannot be, unless the disk is at fault.

    A file system that is full or was remounted read-only is for the checks to find.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno not in _SICK_DISK:
            raise MissingError(
                f"{folder}: cannot hold counters between looks: {error.strerror}",
                remedy="give --state a folder that you may write to",
            ) from error


def check_folder(folder: Path) -> None:
    """MissingError if disk checks are to write to what is no folder."""
    if not folder.is_dir():
        raise MissingError(
            f"{folder}: disk checks cannot write there: no such folder",
            remedy="give --folder an existing folder on the disk to check",
        )


def write_memory(path: Path, memory: Memory) -> bool:
    """Leave counters for the next look, whole or not at all; False if the place is not writable."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(memory))
        partial.replace(path)
    except OSError:
        return False
    return True


def next_memory(look: Look, boot_id: str, counters: Mapping[str, int]) -> Memory:
    """What this look leaves behind: its counters, and flaps of the last hour."""
    flaps: dict[str, tuple[float, ...]] = {}
    if look.before is not None:
        recent = look.uptime_s - 3600
        for port, times in look.before.flaps_s.items():
            flaps[port] = tuple(t for t in times if t >= recent)
    for name, value in counters.items():
        grown = look.since(name, value)
        if name.endswith("/link_downed") and grown is not None and grown[0] > 0:
            port = name.rsplit("/", 1)[0]
            flaps[port] = (*flaps.get(port, ()), look.uptime_s)
    return Memory(boot_id=boot_id, uptime_s=look.uptime_s, counters=dict(counters), flaps_s=flaps)
