"""Chrome traces of torch.profiler: own device work, kernel by kernel, clocks unseen.

Ranks of one stage launch the same kernels in the same order, so the n-th compute kernel of one
rank is compared with the n-th of its peers. Only durations enter: clocks of ranks may differ by
anything. The file is searched as bytes, window by window, and never parsed whole.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.diagnose.readers.files import FileFault, read_chunks

_WINDOW = 4 << 20
_EVENT = re.compile(
    rb'"cat"\s*:\s*"(kernel|gpu_mem\w+|user_annotation)"\s*,\s*"name"\s*:\s*"((?:[^"\\]|\\.){0,2000})"'
    rb'\s*,\s*"pid"\s*:\s*[^,]{1,40},\s*"tid"\s*:\s*[^,]{1,80},\s*"ts"\s*:\s*([\d.]+)\s*,\s*'
    rb'"dur"\s*:\s*([\d.]+)'
)
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{.{0,400}?"rank"\s*:\s*(\d{1,7})', re.DOTALL)
_FILE_RANK = re.compile(r"(?:rank|r|worker)[_-]?(\d{1,7})|(\d{1,7})(?=\.)", re.IGNORECASE)
_COMM = re.compile(rb"nccl|rccl|gloo:|msccl|c10d::|AllReduce|all_reduce|SendRecv", re.IGNORECASE)
BINS = 96
"""Consecutive kernels are summed into so many columns."""


class Trace(NamedTuple):
    """One rank's trace, reduced."""

    rank: int
    file: str
    compute: NDArray[np.float32]
    """Durations of the compute kernels in order, microseconds."""
    communication_us: float
    step_us: float
    """Sum of the profiler's step annotations."""
    steps: int
    signature: int
    """Equal for ranks that launch the same kernels."""


def read_trace(path: Path) -> Trace:
    """Reduce one trace; FileFault if it holds no events."""
    durations: list[float] = []
    annotated: list[float] = []
    names: dict[bytes, int] = {}
    communication, step_us, steps = 0.0, 0.0, 0
    rank = -1
    carry = b""
    size = 0
    kernels = False
    for chunk in read_chunks(path, chunk=_WINDOW):
        block = carry + chunk
        if size == 0:
            found = _RANK.search(block[: 1 << 20])
            rank = int(found[1]) if found else _rank_of(path)
        size += len(chunk)
        kernels = kernels or b'"kernel"' in block
        cut = block.rfind(b'"ph"')
        if cut <= 0:
            cut = max(0, len(block) - 8192)
        for kind, name, _, length in _EVENT.findall(block[:cut]):
            if kind == b"user_annotation":
                if name.startswith(b"ProfilerStep"):
                    step_us += float(length)
                    steps += 1
                elif _COMM.search(name):
                    annotated.append(float(length))
            elif kind == b"kernel":
                if _COMM.search(name):
                    communication += float(length)
                else:
                    durations.append(float(length))
                    names[name] = names.get(name, 0) + 1
        carry = block[cut:]
        if len(carry) > 64 << 20:
            raise FileFault("holds one event larger than 64 MiB")
    for kind, name, _, length in _EVENT.findall(carry):
        if kind == b"kernel" and not _COMM.search(name):
            durations.append(float(length))
            names[name] = names.get(name, 0) + 1
    if kernels and not durations and not communication:
        raise FileFault("holds kernels whose fields are not in the profiler's order")
    if not durations and not annotated and not steps:
        raise FileFault("holds no profiler events" if size else "is empty")
    signature = hash(tuple(sorted((name, count) for name, count in names.items())))
    compute = np.array(durations, np.float32)
    return Trace(
        rank, str(path), compute, communication + sum(annotated), step_us, steps, signature
    )


def _rank_of(path: Path) -> int:
    found = _FILE_RANK.search(path.name)
    return int(found[1] or found[2]) if found else -1


def own_columns(traces: Iterable[Trace]) -> list[tuple[tuple[int, ...], NDArray[np.float32]]]:
    """Groups of ranks that launch the same kernels, each with own work [ranks, columns] in seconds.

    Traces without device kernels (CPU jobs) give one column: step time less communication.
    """
    groups: dict[tuple[int, int], list[Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.signature, len(trace.compute)), []).append(trace)
    made = []
    for (_, count), members in groups.items():
        ranks = tuple(trace.rank for trace in members)
        if count:
            bins = min(BINS, count)
            edges = np.linspace(0, count, bins + 1).astype(int)[:-1]
            rows = [np.add.reduceat(trace.compute, edges) for trace in members]
        else:
            rows = [
                np.array([max(0.0, t.step_us - t.communication_us) / max(1, t.steps)], np.float32)
                for t in members
            ]
        made.append((ranks, (np.stack(rows) / 1e6).astype(np.float32)))
    return made
