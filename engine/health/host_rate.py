"""Checks that load the host for a few seconds: arithmetic, memory, disk, name look-ups.

Arithmetic is done with small whole numbers, so that every order of addition gives the same bits and
a wrong result (silent data corruption) shows on any machine, without a table of known answers.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash

from engine.errors import MissingError
from engine.health.look import Look, problem, settle
from engine.health.result import CheckResult
from engine.units import show_bytes, show_count, show_seconds

_GEMM_N = 1024
_CORE_N = 96
_SECONDS = 1.0
_SLOW_CORE = 3.0  # a VM's cores are uneven; a core that throttles is slower than this
_COPY_BYTES = 256 << 20
_DISK_BYTES = 256 << 20
_NAME_S = 0.05
T = TypeVar("T")


def gemm(look: Look) -> list[CheckResult]:
    """The CPU multiplies matrices correctly and as fast as expected."""
    rng = np.random.default_rng(1)
    a = rng.integers(-8, 8, (_GEMM_N, _GEMM_N)).astype(np.float32)
    b = rng.integers(-8, 8, (_GEMM_N, _GEMM_N)).astype(np.float32)
    ones = np.ones(_GEMM_N)
    # exact in float64 and float32 alike: |sums| <= 64 n < 2^24
    expected = a.astype(np.float64) @ (b.astype(np.float64) @ ones)
    digests, times = set(), []
    for seconds, c in _repeat(lambda: a @ b):
        times.append(seconds)
        digests.add(xxhash.xxh3_64_hexdigest(c.tobytes()))
        if not np.array_equal(c.astype(np.float64) @ ones, expected):
            return [_corrupt("node", "a matrix product is wrong")]
    if len(digests) > 1:
        return [_corrupt("node", "the same matrix product gave different bits")]
    rate = 2 * _GEMM_N**3 / min(times)
    return [_rated(look, "host.gemm", rate, "FLOP/s", show_count(rate, "FLOP/s"), digests.pop())]


def each_core(look: Look) -> list[CheckResult]:
    """Every single core computes correctly and none is much slower than the rest."""
    allowed = sorted(os.sched_getaffinity(0))
    rng = np.random.default_rng(2)
    a = rng.integers(-1000, 1000, (_CORE_N, _CORE_N))
    expected = a @ a
    fastest: dict[int, float] = {}
    try:
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            for _ in range(3):
                start = time.perf_counter()
                wrong = not np.array_equal(a @ a, expected)
                took = time.perf_counter() - start
                fastest[cpu] = min(took, fastest.get(cpu, took))
                if wrong:
                    return [_corrupt(f"cpu{cpu}", "a product of whole numbers is wrong")]
    finally:
        os.sched_setaffinity(0, allowed)
    return judge_cores(fastest)


def judge_cores(seconds: dict[int, float]) -> list[CheckResult]:
    """Cores that took much longer than the median for the same work."""
    middle = statistics.median(seconds.values())
    bad = [
        problem(
            "warn", f"cpu{cpu}", f"{took / middle:.1f} times as slow as its equals", action="watch",
            remedy="check its clock with `turbostat`; keep ranks off it meanwhile", measured=took,
            expected=middle, unit="s", bar="median of the node",
        )
        for cpu, took in seconds.items() if took > _SLOW_CORE * middle
    ]  # fmt: skip
    return settle(bad, f"{len(seconds)} cores compute alike", measured=len(seconds), unit="CPUs")


def memory_rate(look: Look) -> list[CheckResult]:
    """Host memory copies correctly and as fast as expected."""
    words = _COPY_BYTES // 8
    source = np.arange(words, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    target = np.empty_like(source)
    times = [seconds for seconds, _ in _repeat(lambda: np.copyto(target, source))]
    if not np.array_equal(source, target):
        return [_corrupt("node", "a copy in memory differs from its source")]
    rate = 2 * _COPY_BYTES / min(times)  # read and written
    return [_rated(look, "host.memory_rate", rate, "B/s", f"{show_bytes(rate)}/s")]


def disk_rate(look: Look) -> list[CheckResult]:
    """The disk writes and reads back correctly and as fast as expected."""
    space = look.probe.space(look.folder)
    if space is None or space.read_only or space.free_bytes < 4 * _DISK_BYTES:
        raise MissingError(
            f"no room to write in {look.folder}", remedy="give a folder with --folder"
        )
    path = Path(look.folder, f".msctl-disk-{os.getpid()}")
    block = np.random.default_rng(3).integers(0, 256, 4 << 20, dtype=np.uint8).tobytes()
    wanted, found = xxhash.xxh3_64(), xxhash.xxh3_64()
    try:
        start = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            for _ in range(_DISK_BYTES // len(block)):
                file.write(block)
                wanted.update(block)
            os.fdatasync(file.fileno())
            seconds = time.perf_counter() - start
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with open(path, "rb", buffering=0) as file:
            while part := file.read(len(block)):
                found.update(part)
    except OSError as error:
        return [problem("fail", look.folder, f"cannot be written: {error.strerror}", action="evict",
                        remedy="check the disk with `smartctl -a` and the kernel log")]  # fmt: skip
    finally:
        path.unlink(missing_ok=True)
    if wanted.digest() != found.digest():
        return [_corrupt(look.folder, "what was read differs from what was written")]
    rate = _DISK_BYTES / seconds
    return [_rated(look, "host.disk_rate", rate, "B/s", f"{show_bytes(rate)}/s written")]


def names(look: Look) -> list[CheckResult]:
    """Reverse name look-ups of the node's addresses answer within 50 ms.

    torch's TCPStore looks up the name of every client; a lost answer stalls all ranks for seconds.
    """
    ran = look.probe.run(("hostname", "-I"), timeout_s=2)
    addresses = (ran.out.split() if ran is not None and ran.code == 0 else [])[:4]
    if not addresses:
        raise MissingError("the node's addresses are not known", remedy="install `hostname`")
    bad, slowest = [], 0.0
    base = look.probe.run(("getent", "hosts", "127.0.0.1"), timeout_s=3)  # what starting it costs
    for address in addresses:
        asked = look.probe.run(("getent", "hosts", address), timeout_s=3)
        took = max(0.0, asked.seconds - (base.seconds if base else 0.0)) if asked else 0.0
        slowest = max(slowest, took)
        if took > _NAME_S:
            bad.append(problem(
                "warn", address, f"its name takes {show_seconds(took)} to look up", action="fix",
                remedy="list the nodes in /etc/hosts, or use the Redis store for rendezvous",
                measured=took, expected=_NAME_S, unit="s",
            ))  # fmt: skip
    return settle(bad, f"{len(addresses)} addresses, slowest {show_seconds(slowest)}",
                  measured=slowest, expected=_NAME_S, unit="s")  # fmt: skip


def _repeat(function: Callable[[], T]) -> list[tuple[float, T]]:
    """Time and value of a function, at least three times and for about a second."""
    found: list[tuple[float, T]] = []
    end = time.perf_counter() + _SECONDS
    while len(found) < 3 or (time.perf_counter() < end and len(found) < 50):
        start = time.perf_counter()
        value = function()
        found.append((time.perf_counter() - start, value))
    return found


def _rated(
    look: Look, name: str, rate: float, unit: str, shown: str, evidence: str = ""
) -> CheckResult:
    """A measured rate against the profile's bar, if it has one."""
    bar = look.profile.bar(name)
    holds = bar is None or bar.holds(rate)
    return CheckResult(
        status="ok" if holds else "fail", message=shown, measured=rate,
        expected=bar.shown if bar else None, unit=unit, bar=bar.source if bar else "",
        remedy="" if holds else "look for a stranger with `top`, then for throttling",
        action="none" if holds else "evict", evidence=evidence,
    )  # fmt: skip


def _corrupt(target: str, what: str) -> CheckResult:
    return problem("fail", target, what, action="rma", bar="exact arithmetic",
                   remedy="take the node out at once: it is wrong without an error")  # fmt: skip
