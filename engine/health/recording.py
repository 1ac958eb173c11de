"""A machine as a recording: what was read from it, as data, and a probe that answers from it.

`msctl selfcheck --record FILE` writes one on a machine that misbehaves; the same checks then give
the same verdict anywhere. Tests describe healthy and sick machines like this. A recording comes
from outside, so its size is bounded and its types are checked on reading.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from engine.errors import MissingError, TraceError
from engine.health.bounded import read_bounded
from engine.health.kernel_log import LogLine, parse_log
from engine.health.nvml import GpuState
from engine.health.probe import Probe, Ran, Space
from engine.spec.base import NonNegative, Noun, Size

_MAX_RECORDING = 64 << 20


class Recording(Noun, frozen=True, kw_only=True):
    """Everything that checks asked of a machine."""

    host: str = "recorded"
    now_s: NonNegative = 0.0
    cpus: Size = 1
    files: dict[str, str] = msgspec.field(default_factory=dict)
    """Text by path; folders follow from the paths."""
    links: dict[str, str] = msgspec.field(default_factory=dict)
    spaces: dict[str, Space] = msgspec.field(default_factory=dict)
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    commands: dict[str, Ran] = msgspec.field(default_factory=dict)
    """By the words of the command, joined with spaces."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: GpuState | None = None
    no_gpus: str = "NVML Shared Library Not Found"
    """Why there is no GPU state."""
    kernel_log: str | None = None


class RecordedProbe:
    """Answers from a recording and never touches this machine."""

    def __init__(self, recording: Recording) -> None:
        self._r = recording
        self._folders: dict[str, set[str]] = {}
        for path in (*recording.files, *recording.links):
            while "/" in path[1:]:
                path, _, name = path.rpartition("/")
                names = self._folders.setdefault(path, set())
                if name in names:
                    break
                names.add(name)

    def read(self, path: str) -> str | None:
        """The recorded text."""
        return self._r.files.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        """What was recorded below a folder."""
        return tuple(sorted(self._folders.get(path.rstrip("/"), ())))

    def link(self, path: str) -> str:
        """The recorded target."""
        return self._r.links.get(path, "")

    def space(self, path: str) -> Space | None:
        """The recorded file system."""
        return self._r.spaces.get(path)

    def limits(self) -> dict[str, int]:
        """Recorded limits."""
        return self._r.limits

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        """The recorded end of a command."""
        return self._r.commands.get(" ".join(command))

    def gpus(self) -> GpuState:
        """Recorded GPU state."""
        if self._r.gpus is None:
            raise MissingError(f"NVML: {self._r.no_gpus}", remedy="install the NVIDIA driver")
        return self._r.gpus

    def kernel_log(self) -> tuple[LogLine, ...]:
        """Recorded kernel lines."""
        if self._r.kernel_log is None:
            raise MissingError(
                "the kernel log may not be read", remedy="run the self-check as root"
            )
        return parse_log(self._r.kernel_log)

    def env(self) -> Mapping[str, str]:
        """Recorded variables."""
        return self._r.env

    def now_s(self) -> float:
        """When it was recorded."""
        return self._r.now_s

    def cpus(self) -> int:
        """As recorded."""
        return self._r.cpus

    def host(self) -> str:
        """As recorded."""
        return self._r.host


class TeeProbe:
    """Asks another probe and keeps what it answered."""

    def __init__(self, inner: Probe) -> None:
        self._inner = inner
        self._files: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._spaces: dict[str, Space] = {}
        self._commands: dict[str, Ran] = {}
        self._gpus: GpuState | None = None
        self._why = ""
        self._log: tuple[LogLine, ...] | None = None

    def read(self, path: str) -> str | None:
        """Kept if there is such a file."""
        text = self._inner.read(path)
        if text is not None:
            self._files[path] = text
        return text

    def names(self, path: str) -> tuple[str, ...]:
        """Folders follow from files; a name without a file is kept as an empty one."""
        found = self._inner.names(path)
        if not path.startswith("/proc"):
            for name in found:
                self._files.setdefault(f"{path}/{name}/.", "")
        return found

    def link(self, path: str) -> str:
        """Kept."""
        self._links[path] = self._inner.link(path)
        return self._links[path]

    def space(self, path: str) -> Space | None:
        """Kept if there is such a path."""
        space = self._inner.space(path)
        if space is not None:
            self._spaces[path] = space
        return space

    def limits(self) -> dict[str, int]:
        """As they are."""
        return self._inner.limits()

    def run(self, command: Sequence[str], *, timeout_s: float) -> Ran | None:
        """Kept if the program is there."""
        ran = self._inner.run(command, timeout_s=timeout_s)
        if ran is not None:
            self._commands[" ".join(command)] = ran
        return ran

    def gpus(self) -> GpuState:
        """Kept, or why there are none."""
        try:
            self._gpus = self._inner.gpus()
        except MissingError as error:
            self._why = error.what.removeprefix("NVML: ")
            raise
        return self._gpus

    def kernel_log(self) -> tuple[LogLine, ...]:
        """Kept."""
        self._log = self._inner.kernel_log()
        return self._log

    def env(self) -> Mapping[str, str]:
        """As it is."""
        return self._inner.env()

    def now_s(self) -> float:
        """As it is."""
        return self._inner.now_s()

    def cpus(self) -> int:
        """As they are."""
        return self._inner.cpus()

    def host(self) -> str:
        """As it is."""
        return self._inner.host()

    def recording(self) -> Recording:
        """What was asked so far. Of the environment only what NCCL and torch read is kept."""
        log = self._log
        kept = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "OMP_")
        return Recording(
            host=self._inner.host(),
            now_s=self._inner.now_s(),
            cpus=self._inner.cpus(),
            files=self._files,
            links=self._links,
            spaces=self._spaces,
            limits=self._inner.limits(),
            commands=self._commands,
            env={k: v for k, v in self._inner.env().items() if k.startswith(kept)},
            gpus=self._gpus,
            no_gpus=self._why,
            kernel_log=None
            if log is None
            else "\n".join(f"[{line.at_s:.6f}] {line.text}" for line in log),
        )


def read_recording(path: Path) -> Recording:
    """A recording from a file; TraceError if it is none."""
    remedy = "write one with msctl selfcheck --record FILE on the machine"
    try:
        recording = msgspec.json.decode(read_bounded(path, _MAX_RECORDING), type=Recording)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not a recording: {error}", remedy=remedy) from error
    # Every field has a default, so `{}` has the right types; but each look reads /proc.
    if not any(name.startswith("/proc/") for name in recording.files):
        raise TraceError(
            f"{path}: not a recording: `files` holds nothing from /proc, which every look reads",
            remedy=remedy,
        )
    return recording
