"""Limits by control groups, of either version: a processor share, or the memory of a process.

Needs root and a kernel whose `cpu` and `memory` controllers may be used here.
"""

import contextlib
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000


class Group:
    """A group of its own for one process; a context manager that lets it go and removes it."""

    def __init__(self, controller: str, name: str) -> None:
        unified = (_ROOT / "cgroup.controllers").exists()
        self._parent = _ROOT if unified else _ROOT / controller
        self._is_unified, self._controller = unified, controller
        self.folder = self._parent / name

    def __enter__(self) -> "Group":
        if self._is_unified:
            with contextlib.suppress(OSError):
                (_ROOT / "cgroup.subtree_control").write_text(f"+{self._controller}")
        self.folder.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for _i in range(100):
            with contextlib.suppress(OSError):
                for pid in (self.folder / "cgroup.procs").read_text().split():
                    (self._parent / "cgroup.procs").write_text(pid)
                self.folder.rmdir()
                return
            time.sleep(0.05)

    def take(self, pid: int) -> None:
        """Put a process and all its threads under the limit."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def share(self, share: float) -> None:
        """So much of one core, in slices of 20 ms."""
        quota = int(_PERIOD_US * share)
        if self._is_unified:
            (self.folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            return
        (self.folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (self.folder / "cpu.cfs_quota_us").write_text(str(quota))

    def memory(self, limit: int) -> None:
        """At most so many new bytes; what a process had before it came counts elsewhere."""
        if self._is_unified:
            with contextlib.suppress(OSError):
                (self.folder / "memory.swap.max").write_text("0")
            (self.folder / "memory.max").write_text(str(limit))
            return
        (self.folder / "memory.limit_in_bytes").write_text(str(limit))

    @property
    def killed(self) -> int:
        """How many processes the kernel ended here for want of memory."""
        name = "memory.events" if self._is_unified else "memory.oom_control"
        for line in (self.folder / name).read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0
