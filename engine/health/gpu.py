"""Checks that load the GPUs: arithmetic, memory, and the paths to the host and to one another.

Matrices hold small whole numbers, so that every order of addition gives the same bits: the digest
of a product is the same on each GPU of every node, and another one is silent data corruption.

Everything that is measured goes through a `Device`, so that the same code runs on a CPU, which is
how it is tested where there is no GPU. Bandwidths form matrices that `network_rate` explains.
"""

import functools
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import MissingError
from engine.health.look import Look, problem, settle
from engine.health.network_rate import find_slow
from engine.health.profile import Bar
from engine.health.result import CheckResult
from engine.units import show_bytes, show_count

if TYPE_CHECKING:
    from torch import Tensor

    from engine.device import Device

_GEMM_N = 16384
_RANGE = {"bf16": (-8, 8), "fp8": (-1, 2)}
"""Whole numbers from, below: sums of n products stay exact in the accumulators of each precision
(24 bits for bf16, as few as 14 for fp8)."""
_ROUNDS = 10
_COPY_BYTES = 1 << 30
_HOST_BYTES = 256 << 20
_BLOCK_BYTES = 1 << 30
_TEST_SHARE = 0.9
"""Of the free memory that a memory test writes."""
_PRIME = 1_000_003


Check = Callable[[Look], list[CheckResult]]


class Corrupt(Exception):
    """Data that came out otherwise than it went in."""


def _honest(check: Check) -> Check:
    """Corruption that a check meets is its finding, and the worst there is."""

    @functools.wraps(check)
    def checked(look: Look) -> list[CheckResult]:
        try:
            return check(look)
        except Corrupt as error:
            return [problem(
                "fail", "node", str(error), action="rma", bar="exact comparison",
                remedy="take the node out at once: it is wrong without an error",
            )]  # fmt: skip

    return checked


class Product(NamedTuple):
    """A matrix product as one device did it, over and over."""

    rate: float
    """FLOP/s."""
    digest: str
    is_steady: bool
    """Whether every repetition gave the same bits."""


def gemm(look: Look) -> list[CheckResult]:
    """All GPUs multiply matrices to the same bits (bf16, fp8) and as fast as expected."""
    devices = _devices()
    found = judge_products(look, "bf16", [multiply(d, "bf16", size=_GEMM_N) for d in devices])
    try:
        eights = [multiply(d, "fp8", size=_GEMM_N) for d in devices]
    except RuntimeError as error:  # before Ada and Hopper there is no fp8
        why = str(error).strip().splitlines()[0][:120]
        return [*found, CheckResult(status="skip", target="fp8", message=f"no fp8 here: {why}")]
    return [*found, *judge_products(look, "fp8", eights)]


@_honest
def memory_rate(look: Look) -> list[CheckResult]:
    """GPU memory copies correctly and as fast as expected."""
    rates = {("memory", f"gpu{i}"): copy_within(d, _COPY_BYTES) for i, d in enumerate(_devices())}
    return _judge(look, "gpu.memory_rate", rates)


def memory(look: Look) -> list[CheckResult]:
    """Most of the free GPU memory keeps a pattern and its complement."""
    import torch

    found, tested = [], 0
    for i, device in enumerate(_devices()):
        free = torch.cuda.mem_get_info(device.torch_device)[0]
        wrong = write_and_read(device, int(free * _TEST_SHARE), _BLOCK_BYTES)
        tested += free
        if wrong:
            found.append(problem(
                "fail", f"gpu{i}", f"{wrong} words of memory did not keep what was written",
                action="rma", remedy="take the GPU out: its memory is wrong without an error",
                measured=wrong, expected=0, bar="exact comparison",
            ))  # fmt: skip
    return settle(found, f"{show_bytes(tested * _TEST_SHARE)} written and read back twice")


@_honest
def from_host(look: Look) -> list[CheckResult]:
    """Every GPU is written to from every memory node of the host at full rate."""
    return _judge(look, "gpu.h2d", _host_paths(look, 0))


@_honest
def to_host(look: Look) -> list[CheckResult]:
    """Every GPU is read from every memory node of the host at full rate."""
    return _judge(look, "gpu.d2h", _host_paths(look, 1))


def _host_paths(look: Look, way: int) -> dict[tuple[str, str], float]:
    """(memory node, GPU) -> bytes per second, to the device (0) or back (1)."""
    rates = {}
    for place, allowed in numa_cpus(look).items():
        with _on(allowed):
            for i, device in enumerate(_devices()):
                rates[place, f"gpu{i}"] = copy_to_host(device, _HOST_BYTES)[way]
    return rates


@_honest
def peer_paths(look: Look) -> list[CheckResult]:
    """Every GPU reaches every other one directly and at full rate."""
    devices = _devices()
    if len(devices) < 2:
        raise MissingError("only one GPU", remedy="nothing to do")
    rates = {
        (f"gpu{a}", f"gpu{b}"): copy_between(devices[a], devices[b], _HOST_BYTES)
        for a in range(len(devices)) for b in range(len(devices)) if a != b
    }  # fmt: skip
    return _judge(look, "gpu.p2p", rates)


def judge_products(look: Look, precision: str, products: Sequence[Product]) -> list[CheckResult]:
    """Bits first: one that differs makes every rate of the node worthless. Then rates."""
    usual = Counter(p.digest for p in products).most_common(1)[0][0]
    middle = statistics.median(p.rate for p in products)
    bar = look.profile.bar(f"gpu.gemm/{precision}")
    found = []
    for i, product in enumerate(products):
        target = f"gpu{i} {precision}"
        wrong = "" if product.is_steady else "the same product gave different bits"
        if not wrong and product.digest != usual:
            wrong = "its product has other bits than that of the other GPUs"
        if wrong:
            found.append(problem(
                "fail", target, wrong, action="rma", evidence=product.digest,
                remedy="take the node out at once: it is wrong without an error",
                measured=product.digest, expected=usual, bar="exact arithmetic",
            ))  # fmt: skip
            continue
        slow = product.rate < middle * (1 - look.profile.tolerance)
        holds = not slow and (bar is None or bar.holds(product.rate))
        found.append(CheckResult(
            status="ok" if holds else "fail", target=target, measured=product.rate, unit="FLOP/s",
            message=show_count(product.rate, "FLOP/s"), evidence=product.digest,
            expected=middle if slow else bar.shown if bar else None,
            bar="median of the node" if slow else bar.source if bar else "",
            action="none" if holds else "evict",
            remedy="" if holds else "look at gpu.clocks, gpu.temperature and gpu.power",
        ))  # fmt: skip
    return found


def multiply(device: "Device", precision: str, *, size: int, rounds: int = _ROUNDS) -> Product:
    """Rate and bits of `rounds` products of two [size, size] matrices, issued in one go."""
    import torch

    generator = torch.Generator().manual_seed(1)
    low, high = _RANGE[precision]
    draw = [torch.randint(low, high, (size, size), generator=generator, dtype=torch.int8)
            for _ in range(2)]  # fmt: skip
    a, b = (m.to(device.torch_device) for m in draw)
    if precision == "fp8":
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=device.torch_device)

        def once() -> "Tensor":
            return torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16)
    else:
        a16, b16 = a.to(torch.bfloat16), b.to(torch.bfloat16)

        def once() -> "Tensor":
            return a16 @ b16

    first = once().clone()
    seconds, last = _timed(device, once, rounds)
    is_steady = torch.equal(first.view(torch.int16), last.view(torch.int16))
    return Product(2 * size**3 / seconds, digest(last), is_steady)


def digest(matrix: "Tensor") -> str:
    """64 bits of a [n, m] matrix of 16-bit numbers: position and value of each element count."""
    import torch

    weight = torch.arange(1, matrix.shape[1] + 1, device=matrix.device) % 8191 + 1
    total = 0
    for number, rows in enumerate(matrix.view(torch.int16).split(1024)):
        sums = (rows.to(torch.int64) * weight).sum(1)
        turn = torch.arange(1, len(sums) + 1, device=matrix.device) * _PRIME
        total = (total * 31 + int((sums * turn).sum()) + number) % (1 << 64)
    return f"{total:016x}"


def copy_within(device: "Device", size: int) -> float:
    """Bytes read and written per second by a copy in the device's memory."""
    import torch

    source = torch.arange(size // 8, device=device.torch_device)
    target = torch.empty_like(source)
    seconds, _ = _timed(device, lambda: target.copy_(source), _ROUNDS)
    _must_equal(target, source, "a copy within its memory")
    return 2 * size / seconds


def copy_to_host(device: "Device", size: int) -> tuple[float, float]:
    """Bytes per second from pinned memory of the host to the device, and back."""
    import torch

    pinned = device.backend == "nccl"
    source = torch.arange(size // 8, pin_memory=pinned)
    back = torch.empty(size // 8, dtype=torch.int64, pin_memory=pinned)
    there = torch.empty(size // 8, dtype=torch.int64, device=device.torch_device)
    up, _ = _timed(device, lambda: there.copy_(source, non_blocking=True), _ROUNDS)
    down, _ = _timed(device, lambda: back.copy_(there, non_blocking=True), _ROUNDS)
    _must_equal(back, source, "what came back from the device")
    return size / up, size / down


def copy_between(source: "Device", target: "Device", size: int) -> float:
    """Bytes per second from one device's memory to another's."""
    import torch

    data = torch.arange(size // 8, device=source.torch_device)
    other = torch.empty(size // 8, dtype=torch.int64, device=target.torch_device)

    def both() -> None:
        source.synchronize()
        target.synchronize()

    other.copy_(data)
    both()
    start = time.perf_counter()
    for _ in range(_ROUNDS):
        other.copy_(data, non_blocking=True)
    both()
    seconds = (time.perf_counter() - start) / _ROUNDS
    _must_equal(other.cpu(), data.cpu(), "what came from the other device")
    return size / max(seconds, 1e-9)


def write_and_read(device: "Device", size: int, block: int) -> int:
    """Words that did not keep a pattern or its complement, over `size` bytes in blocks.

    Every block is held until the end, so that the allocator hands out each piece of memory once.
    """
    import torch

    held: list[Tensor] = []
    word = torch.arange(max(1, block // 8), device=device.torch_device)
    wrong = 0
    for _ in range(size // block):
        try:
            held.append(torch.empty_like(word))
        except RuntimeError:  # memory in pieces: test what there is
            break
    for flip in (0, -1):
        for number, part in enumerate(held):
            torch.bitwise_xor(word * _PRIME + number, flip, out=part)
        device.synchronize()
        for number, part in enumerate(held):
            wrong += int(((word * _PRIME + number) ^ flip).ne(part).sum())
    return wrong


def numa_cpus(look: Look) -> dict[str, set[int]]:
    """Memory nodes of the host with their CPUs that this process may use."""
    allowed = os.sched_getaffinity(0)
    found = {}
    root = "/sys/devices/system/node"
    for place in look.probe.names(root):
        text = look.probe.read(f"{root}/{place}/cpulist") if place.startswith("node") else None
        if text and (cpus := _cpu_list(text) & allowed):
            found[place] = cpus
    return found or {"node0": set(allowed)}


def _cpu_list(text: str) -> set[int]:
    """`0-3,8` as the numbers; what is none is left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            found |= set(range(int(low), min(int(high or low), int(low) + 4096) + 1))
    return found


@contextmanager
def _on(cpus: set[int]) -> Iterator[None]:
    """Run on these CPUs, so that memory touched for the first time is near them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _devices() -> "list[Device]":
    """All GPUs of the node; MissingError if there is none or no torch."""
    try:
        import torch

        from engine.device import CudaDevice
    except ImportError:
        raise MissingError("torch is not installed", remedy="run `pip install torch`") from None
    if not torch.cuda.is_available():
        raise MissingError("torch sees no CUDA device", remedy="see gpu.count and gpu.driver")
    return [CudaDevice(i) for i in range(torch.cuda.device_count())]


def _timed(
    device: "Device", function: "Callable[[], Tensor]", rounds: int
) -> "tuple[float, Tensor]":
    """Mean seconds of one of `rounds` calls issued in one go after a warm-up; the last value."""
    value = function()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        value = function()
    device.synchronize()
    return max((time.perf_counter() - start) / rounds, 1e-9), value


def _must_equal(found: "Tensor", expected: "Tensor", what: str) -> None:
    import torch

    if not torch.equal(found, expected):
        raise Corrupt(f"{what} differs from its source")


def _judge(look: Look, name: str, rates: dict[tuple[str, str], float]) -> list[CheckResult]:
    """What a matrix of bandwidths says about its rows, columns and cells."""
    bar = look.profile.bar(name) or Bar(unit="B/s", source="median of the node")
    found = [
        problem(
            "fail", blame.part, f"{blame.slow} of {blame.of} paths are slow, worst "
            f"{show_bytes(blame.rate)}/s", action="evict",
            remedy="look at gpu.pcie and gpu.nvlink, reseat the GPU, then take the node out",
            measured=blame.rate, expected=bar.shown, unit="B/s", bar=bar.source,
        )
        for blame in find_slow(rates, bar, look.profile.tolerance)
    ]  # fmt: skip
    if found:
        return found
    middle = statistics.median(rates.values())
    return [CheckResult(
        status="ok", message=f"{len(rates)} paths, median {show_bytes(middle)}/s",
        measured=middle, expected=bar.shown, unit="B/s", bar=bar.source if bar.shown else "",
    )]  # fmt: skip
