"""Find, build and load the library of native operators (engine/csrc), and say what was chosen.

Order: a prebuilt library, the user's cache, a build into that cache with make, c++ and (for CUDA)
nvcc; otherwise operators stay with plain torch. The cache is keyed by all that determines the
library: sources, target, torch's minor version, processor. Next: engine/ops/norm.py for what an
operator looks like.
"""

import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from engine.errors import MissingError

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).resolve().parent.parent / "csrc"
Target = Literal["cpu", "cuda"]
Mode = Literal["auto", "reference", "native"]

_LIMIT_S: dict[Target, float] = {"cpu": 240.0, "cuda": 900.0}
"""Longest wait for a build, one's own or that of another rank on the node."""
_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "cpu": (torch.float32, torch.float64, torch.bfloat16),
    "cuda": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
}
"""What the kernels of each device compute with."""
_REMEDY = (
    "install make and a C++20 compiler (and nvcc for CUDA), or set train.ops = auto or reference"
)


class Kernels(NamedTuple):
    """The loaded library, and where its operators may be used."""

    library: Path
    target: Target
    ops: Any
    """Namespace of the operators; each writes into tensors that the caller made."""

    def fit(self, tensor: Tensor) -> bool:
        """Whether there is a kernel for this tensor's device and precision."""
        kind = tensor.device.type
        return tensor.dtype in _DTYPES.get(kind, ()) and (kind == "cpu" or self.target == "cuda")


class _Absent(Exception):
    """Why there is no library; `auto` goes on without, `native` reports it."""


def choose(
    mode: Mode, device: torch.device, dtype: torch.dtype, *, cache: Path | None = None
) -> Kernels | None:
    """The native operators, or None for plain torch.

    auto        native where it can be had, else plain torch; the log says which and why
    reference   plain torch
    native      native, or MissingError

    May build the library: seconds to minutes once per machine, bounded. cache replaces the user's.
    """
    if mode == "reference":
        logger.info("operators: plain torch, as asked")
        return None
    try:
        if dtype not in _DTYPES.get(device.type, ()):
            raise _Absent(f"no kernels for {dtype} on {device.type}")
        target: Target = "cuda" if device.type == "cuda" else "cpu"
        kernels = _load(_library(target, cache or user_cache()), target)
    except _Absent as reason:
        if mode == "native":
            raise MissingError(f"train.ops = native: {reason}", remedy=_REMEDY) from None
        logger.warning("operators: plain torch, since %s", reason)
        return None
    logger.info("operators: native, %s", kernels.library)
    return kernels


def user_cache() -> Path:
    """Where built libraries are kept."""
    return Path.home() / ".cache" / "msctl" / "native"


def source_key(target: Target) -> str:
    """Digest of all that determines the library except the machine it is built on."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{target} {platform.system()} {platform.machine()}".encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.parent.name == "store":
            continue  # another library's
        if path.suffix in (".h", ".hpp", ".cpp", ".cu", ".cuh") or path.name == "Makefile":
            digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def machine_key() -> str:
    """Digest of the processor's abilities: code made for this machine may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    abilities = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return hashlib.blake2b("\n".join(abilities[:3]).encode(), digest_size=4).hexdigest()


def _library(target: Target, cache: Path) -> Path:
    """A library for these sources: prebuilt, cached, or built now."""
    name = f"libmsctl_ops-{target}-{source_key(target)}"
    prebuilt = SOURCES / "prebuilt" / f"{name}.so"
    if prebuilt.is_file():
        return prebuilt
    version = ".".join(torch.__version__.split(".")[:2])
    cached = cache / f"{name}-{version}-{machine_key()}.so"
    try:
        if not cached.is_file():
            _private(cache)
            with _alone(cached.with_suffix(".lock"), _LIMIT_S[target]):
                if not cached.is_file():
                    build(cached, target)
        _private(cache)
    except OSError as error:
        raise _Absent(f"{cache}: {error.strerror or error}") from None
    return cached


def build(library: Path, target: Target, *, march: str = "native") -> None:
    """Compile the library and put it in place in one move.

    Cost: about 5 s of CPU time for `cpu`, a minute for `cuda`.
    """
    for tool in ("make", "c++", *(["nvcc"] if target == "cuda" else [])):
        if shutil.which(tool) is None:
            raise _Absent(f"{tool} is not installed")
    logger.info("operators: building %s, once for this machine", library)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        command = [
            "make", "-C", str(SOURCES), f"-j{os.cpu_count() or 1}", target, f"OUT={folder}",
            f"MARCH={march}", f"PYTHON={sys.executable}", f"TORCH={Path(torch.__file__).parent}",
        ]  # fmt: skip
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S[target], check=False
            )
        except subprocess.TimeoutExpired:
            raise _Absent(f"the build took longer than {_LIMIT_S[target]:.0f} s") from None
        if ended.returncode:
            said = [line for line in ended.stderr.splitlines() if "rror" in line]
            raise _Absent(f"the build failed: {said[0].strip() if said else ended.returncode}")
        os.replace(Path(folder, "libmsctl_ops.so"), library)


@contextmanager
def _alone(path: Path, limit_s: float) -> Iterator[None]:
    """Hold a lock file; others wait for at most `limit_s`."""
    end = time.monotonic() + limit_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise _Absent(f"another build held {path} for {limit_s:.0f} s") from None
                time.sleep(0.05)
        yield


def _private(cache: Path) -> None:
    """Code is only loaded from a folder that nobody else can write to."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = cache.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise _Absent(f"{cache} is not the user's own, or others may write to it")


@functools.cache
def _load(library: Path, target: Target) -> Kernels:
    """Register the operators with torch; once per process, as torch allows."""
    try:
        torch.ops.load_library(str(library))
    except (OSError, RuntimeError) as error:
        raise _Absent(f"{library} does not load: {str(error).splitlines()[0]}") from None
    return Kernels(library, target, torch.ops.msctl)
