"""What differs between CPU and GPU, behind one small protocol.

Two classes, no `if cuda` inside either, none outside. Streams of a CPU run in order and its events
are clock readings, so code that overlaps is the same on both.
"""

import functools
import os
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from engine.errors import MissingError

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
}
"""Names of precisions in recipes."""


class Device(Protocol):
    """A device a rank computes on."""

    backend: str
    torch_device: torch.device

    def synchronize(self) -> None:
        """Wait for all work issued so far."""

    def memory_bytes(self) -> int:
        """Peak memory this process has held so far."""

    def name(self) -> str:
        """What the device calls itself."""

    def gemm_flops_per_s(self, dtype: torch.dtype) -> float:
        """Measured rate of a large matrix product: the denominator of MFU if no peak is known."""


class CpuDevice:
    """The processor of this node; `threads` are used by each operator."""

    backend = "gloo"
    torch_device = torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing to wait for: operators return when done."""

    def memory_bytes(self) -> int:
        """Peak resident set of this process."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def name(self) -> str:
        """Model name from the kernel, or the architecture."""
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as file:
                for line in file:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip()
        except OSError:
            pass
        return os.uname().machine

    def gemm_flops_per_s(self, dtype: torch.dtype) -> float:
        """Best of several products, for the threads this process uses."""
        return _gemm_rate(self, dtype, size=512, repeats=6)


class CudaDevice:
    """One CUDA GPU, chosen by its index on this node."""

    backend = "nccl"

    def __init__(self, index: int) -> None:
        if not torch.cuda.is_available():
            raise MissingError(
                "train.device = cuda: torch sees no CUDA device",
                remedy="set train.device = cpu, or install a CUDA build of torch and a driver",
            )
        if index >= torch.cuda.device_count():
            raise MissingError(
                f"rank needs CUDA device {index}, this node has {torch.cuda.device_count()}",
                remedy="start at most one rank per device, e.g. --set layout.dp=1",
            )
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(index)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self.torch_device)

    def memory_bytes(self) -> int:
        """Peak bytes held by torch's allocator."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def name(self) -> str:
        """The GPU's marketing name."""
        return torch.cuda.get_device_name(self.torch_device)

    def gemm_flops_per_s(self, dtype: torch.dtype) -> float:
        """Best of several large products."""
        return _gemm_rate(self, dtype, size=8192, repeats=10)


class SideStream:
    """Copies from a CUDA device to host memory beside what the current stream does."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._done = torch.cuda.Event()
        self._pinned: list[int] = []

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Start copying each second tensor into the first, after the current stream's work."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for host, there in pairs:
                host.copy_(there, non_blocking=True)
            self._done.record()

    def wait(self) -> None:
        """Until the copies are in host memory."""
        self._done.synchronize()

    def pin(self, address: int, size: int) -> int:
        """Lock the pages of host memory; returns CUDA's error code, 0 if they are locked."""
        code = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
        if code == 0:
            self._pinned.append(address)
        return code

    def unpin(self) -> None:
        """Unlock what `pin` locked."""
        while self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop())


def open_device(kind: str, local_rank: int) -> Device:
    """The device of a rank: `cpu`, `cuda`, or `auto` (cuda if there is one)."""
    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return CudaDevice(local_rank)
    return CpuDevice()


@functools.cache
def mend_forks() -> None:
    """Let every child that this process forks from now on repair torch's thread pool, alone.

    torch marks the pool as broken in a forked child and renews it at its next use, without a lock:
    a thread of gloo and the main thread that do so at once find none ("Invalid thread pool!").
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))


def cuda_capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device, e.g. (9, 0)."""
    return torch.cuda.get_device_capability(device)


_RATE_S = 0.25
"""A rate is the best of at least so long: what else a node does comes and goes in less."""


def _gemm_rate(device: Device, dtype: torch.dtype, *, size: int, repeats: int) -> float:
    a = torch.randn(size, size, device=device.torch_device).to(dtype)
    best, spent, done = float("inf"), 0.0, 0
    while done < repeats or spent < _RATE_S:
        device.synchronize()
        start = time.perf_counter()
        a @ a
        device.synchronize()
        took = time.perf_counter() - start
        best, spent, done = min(best, took), spent + took, done + 1
    return 2 * size**3 / best
