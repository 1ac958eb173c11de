"""What checks may read from a machine, as one small protocol, and the real machine behind it.

Every value comes from outside and may be missing, huge or nonsense: readers return None or an empty
tuple for what is absent, sizes are bounded, commands have time-outs. What a whole group of checks
needs and is not there raises MissingError, which the runner reports as `skip` with the reason.
"""

import errno
import math
import os
import resource
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from engine.errors import MissingError
from engine.health.kernel_log import LogLine, parse_log
from engine.health.nvml import GpuState, read_gpus
from engine.spec.base import NonNegative, Noun

_MAX_FILE = 1 << 20
_MAX_OUTPUT = 4 << 20
_MAX_NAMES = 10_000
_LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}


class Space(Noun, frozen=True, kw_only=True):
    """A file system: bytes and inodes in total and free for an ordinary user."""

    total_bytes: int
    free_bytes: int
    total_inodes: int = 0
    free_inodes: int = 0
    read_only: bool = False


class Ran(Noun, frozen=True, kw_only=True):
    """How a command ended; `code` 124 means that it did not end in time."""

    code: int
    out: str
    err: str = ""
    seconds: NonNegative = 0.0


class Probe(Protocol):
    """The machine as checks see it."""

    def read(self, path: str) -> str | None:
        """A text file without its last line end; None if it cannot be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty if there is none."""

    def link(self, path: str) -> str:
        """The last part of what a symbolic link points to; empty if it is none."""

    def space(self, path: str) -> Space | None:
        """The file system that holds a path."""

    def limits(self) -> dict[str, int]:
        """Soft limits of a process by name (memlock, nofile ...); -1 is unlimited."""

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        """Run a program; None if it is not installed."""

    def gpus(self) -> GpuState:
        """All that the GPU driver says; MissingError if there is no driver."""

    def kernel_log(self) -> tuple[LogLine, ...]:
        """Lines since boot; MissingError if they may not be read."""

    def env(self) -> Mapping[str, str]:
        """The environment that a rank would inherit."""

    def now_s(self) -> float:
        """Seconds since 1970."""

    def cpus(self) -> int:
        """Logical CPUs that this process may run on."""

    def host(self) -> str:
        """The name of the node."""


class Uptime(NamedTuple):
    """Identity and age of a boot."""

    boot_id: str
    seconds: float


def uptime(probe: Probe) -> Uptime:
    """Which boot this is and how long ago it was."""
    boot = probe.read("/proc/sys/kernel/random/boot_id") or ""
    words = (probe.read("/proc/uptime") or "0").split()
    return Uptime(boot.strip(), number(words[0]) or 0.0)


def number(text: str | None) -> float | None:
    """The first word of a text as a number; None if it is not one, or without end."""
    words = (text or "").split(maxsplit=1)
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class RealProbe:
    """The machine that we run on.

    GPU state and kernel log are read once; `env` and `node` come from the caller.
    """

    def __init__(self, *, env: Mapping[str, str], node: str = "") -> None:
        self._env = dict(env)
        self._node = node
        self._gpus: GpuState | None = None
        self._log: tuple[LogLine, ...] | None = None

    def read(self, path: str) -> str | None:
        """At most 1 MiB; a file that blocks is cut off by the check's deadline."""
        try:
            with open(path, "rb") as file:
                return file.read(_MAX_FILE).decode("utf-8", "replace").rstrip("\n")
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """At most 10,000 names."""
        try:
            return tuple(sorted(os.listdir(path))[:_MAX_NAMES])
        except OSError:
            return ()

    def link(self, path: str) -> str:
        """Not resolved further."""
        try:
            return Path(os.readlink(path)).name
        except OSError:
            return ""

    def space(self, path: str) -> Space | None:
        """From statvfs."""
        try:
            stat = os.statvfs(path)
        except OSError:
            return None
        return Space(
            total_bytes=stat.f_blocks * stat.f_frsize,
            free_bytes=stat.f_bavail * stat.f_frsize,
            total_inodes=stat.f_files,
            free_inodes=stat.f_favail,
            read_only=bool(stat.f_flag & os.ST_RDONLY),
        )

    def limits(self) -> dict[str, int]:
        """Of this process."""
        return {name: resource.getrlimit(which)[0] for name, which in _LIMITS.items()}

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        """In its own session, so that nothing of it outlives a time-out."""
        start = time.perf_counter()
        try:
            ended = subprocess.run(
                list(command), capture_output=True, timeout=timeout_s, check=False,
                stdin=subprocess.DEVNULL, start_new_session=True, env=self._env or None,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Ran(code=124, out="", err=f"no end within {timeout_s:g} s", seconds=timeout_s)
        except (FileNotFoundError, PermissionError):
            return None
        return Ran(
            code=ended.returncode,
            out=ended.stdout[:_MAX_OUTPUT].decode("utf-8", "replace"),
            err=ended.stderr[:_MAX_OUTPUT].decode("utf-8", "replace"),
            seconds=time.perf_counter() - start,
        )

    def gpus(self) -> GpuState:
        """Through NVML, once."""
        if self._gpus is None:
            self._gpus = read_gpus()
        return self._gpus

    def kernel_log(self) -> tuple[LogLine, ...]:
        """From /dev/kmsg, else `dmesg`."""
        if self._log is None:
            self._log = parse_log(_kmsg() or self._dmesg())
        return self._log

    def _dmesg(self) -> str:
        ran = self.run(("dmesg", "--raw"), timeout_s=5)
        if ran is None or ran.code != 0:
            raise MissingError(
                "the kernel log may not be read",
                remedy="run the self-check as root, or set kernel.dmesg_restrict = 0",
            )
        return ran.out

    def env(self) -> Mapping[str, str]:
        """As handed over by the command."""
        return self._env

    def now_s(self) -> float:
        """The wall clock."""
        return time.time()

    def cpus(self) -> int:
        """From the affinity mask."""
        return len(os.sched_getaffinity(0))

    def host(self) -> str:
        """The name that the scheduler uses, if the caller knew it."""
        return self._node or socket.gethostname().split(".")[0]


def _kmsg() -> str:
    """All records of the kernel's ring buffer; empty if it may not be opened."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    records: list[bytes] = []
    size = 0
    try:
        while size < 16 * _MAX_FILE:
            try:
                record = os.read(fd, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: go on with the next
                    continue
                break  # EAGAIN: the end
            records.append(record)
            size += len(record)
    finally:
        os.close(fd)
    return b"".join(records).decode("utf-8", "replace")
