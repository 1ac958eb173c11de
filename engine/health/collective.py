"""Collectives as checks: correct values and bandwidth, on gloo or NCCL (paper 4.3, tests 3 and 4).

The only file of the room beside `gpu.py` that imports torch. Values are whole numbers small enough
to be exact, so that any wrong bit is a finding and not noise.
"""

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import EngineError, MissingError
from engine.health.look import Look, problem
from engine.health.result import CheckResult
from engine.units import show_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from engine.comm.scratch import ScratchGroup

_NODE_BYTES = 32 << 20
_NODE_RANKS = 4
_NODE_TIMEOUT_S = 60.0
_REPEATS = 3
_BUDGET_S = 2.0


class Measured(NamedTuple):
    """One collective as one rank saw it; `wrong` says which value was not as it must be."""

    bytes_per_s: float
    seconds: float
    wrong: str = ""


def make_ready() -> None:
    """Import torch; one thread a rank, as ranks share the node."""
    import torch

    torch.set_num_threads(1)


def measure_all_reduce(
    group: "ScratchGroup", size_bytes: int, *, repeats: int = _REPEATS
) -> Measured:
    """Bus bandwidth, 2 (n - 1)/n of the bytes over the mean time; sums are checked.

    The mean, because a lossy link is fast until it loses something.
    """
    import torch

    count = max(1, size_bytes // 4)
    ramp = (torch.arange(count, device=group.device) % 1024).float()
    world, rank = group.world, group.rank
    expected = ramp * world + world * (world - 1) / 2  # exact below 2^24
    data = torch.empty_like(ramp)

    def once() -> None:
        torch.add(ramp, float(rank), out=data)
        group.all_reduce(data)

    seconds = statistics.fmean(_times(group, once, repeats, budget_s=_BUDGET_S))
    wrong = "" if torch.equal(data, expected) else _first_wrong(data, expected)
    return Measured(2 * (world - 1) / world * count * 4 / seconds, seconds, wrong)


def measure_all_to_all(
    group: "ScratchGroup", size_bytes: int, *, repeats: int = _REPEATS
) -> Measured:
    """Bytes that a rank sends to others over the best time; parts must come from their senders."""
    import torch

    world, rank = group.world, group.rank
    part = max(1, size_bytes // 4 // world)
    data = torch.cat([torch.full((part,), float(rank * world + to)) for to in range(world)])
    expected = torch.cat([torch.full((part,), float(of * world + rank)) for of in range(world)])
    data, expected = data.to(group.device), expected.to(group.device)
    out = torch.empty_like(data)
    seconds = min(_times(group, lambda: group.all_to_all(out, data), repeats))
    wrong = "" if torch.equal(out, expected) else _first_wrong(out, expected)
    return Measured((world - 1) * part * 4 / seconds, seconds, wrong)


def _times(
    group: "ScratchGroup", function: Callable[[], None], repeats: int, *, budget_s: float = 0.0
) -> list[float]:
    """Times of a collective after one warm-up, all ranks starting together.

    A slow link is known after fewer: with a budget, as many as the warm-up says fit, at least four.
    """
    import torch

    start = time.perf_counter()
    function()
    if budget_s:
        mine = torch.tensor([time.perf_counter() - start], device=group.device)
        group.all_reduce(mine)  # the same sum everywhere, so that all ranks repeat as often
        mean = float(mine) / group.world
        repeats = min(repeats, max(4, int(budget_s / max(mean, 1e-9))))
    times = []
    for _ in range(repeats):
        group.barrier()
        start = time.perf_counter()
        function()
        if group.device.type == "cuda":
            group.barrier()
        times.append(max(time.perf_counter() - start, 1e-9))
    return times


def _first_wrong(found: "Tensor", expected: "Tensor") -> str:
    import torch

    at = int(torch.nonzero(found != expected)[0])
    return f"element {at} is {float(found[at]):g}, not {float(expected[at]):g}"


def node(look: Look) -> list[CheckResult]:
    """All ranks of the node exchange data correctly, and as fast as expected."""
    try:
        import torch

        import engine.comm.scratch  # noqa: F401 - before the fork, so that ranks start at once
        from engine.device import mend_forks
    except ImportError:
        raise MissingError("torch is not installed", remedy="run `pip install torch`") from None
    mend_forks()
    gpus = torch.cuda.device_count()
    world = gpus if gpus > 1 else min(_NODE_RANKS, max(2, look.probe.cpus()))
    rows = run_ranks(world, _NODE_BYTES, backend="nccl" if gpus > 1 else "gloo")
    return judge_node(look, rows, "NCCL" if gpus > 1 else "gloo")


def judge_node(look: Look, rows: "Sequence[Measured | str]", kind: str) -> list[CheckResult]:
    """What the measurements or errors of all ranks of a node say."""
    for rank, row in enumerate(rows):
        if isinstance(row, str):
            return [
                problem(
                    "fail",
                    "node",
                    f"rank {rank}: {row}",
                    remedy="look at gpu.nvlink and gpu.pcie, then reboot",
                    action="evict",
                )
            ]
        if row.wrong:
            return [
                problem(
                    "fail",
                    "node",
                    f"rank {rank}: wrong value: {row.wrong}",
                    remedy="take the node out at once: it moves data wrongly",
                    action="rma",
                )
            ]
    rate = min(row.bytes_per_s for row in rows if isinstance(row, Measured))
    bar = look.profile.bar("comm.node")
    is_well = bar is None or bar.holds(rate)
    return [
        CheckResult(
            status="ok" if is_well else "fail",
            message=f"all-to-all of {len(rows)} ranks on {kind}: {show_bytes(rate)}/s",
            measured=rate,
            expected=bar.shown if bar else None,
            unit="B/s",
            bar=bar.source if bar else "",
            remedy="" if is_well else "look at gpu.nvlink and gpu.pcie, then reboot",
            action="none" if is_well else "evict",
        )
    ]


def run_ranks(world: int, size_bytes: int, *, backend: str) -> list["Measured | str"]:
    """An all-to-all over forked ranks of this machine: what each measured, or its error."""
    with tempfile.TemporaryDirectory(prefix="msctl-check-") as folder:
        task = (size_bytes, backend, os.path.join(folder, "store"))
        rows = run_forked(world, _rank, task, backend=backend, timeout_s=_NODE_TIMEOUT_S)
    return [Measured(*row) if isinstance(row, tuple) else row for row in rows]


def run_forked(
    world: int, body: Callable[..., None], task: tuple[Any, ...], *, backend: str, timeout_s: float
) -> list[tuple[Any, ...] | str]:
    """Call `body(rank, world, pipe, *task)` on ranks of this machine; what each sends, in order.

    A text says why a rank has no result. Ranks of NCCL are spawned: CUDA does not survive a fork.
    """
    fork: Any = multiprocessing.get_context("fork" if backend == "gloo" else "spawn")
    ends, processes = [], []
    for rank in range(world):
        mine, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=body, args=(rank, world, theirs, *task), daemon=True)
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    until = time.monotonic() + timeout_s + 5
    rows = [_answer(end, until) for end in ends]
    for process in processes:
        process.kill()
        process.join(1)
    return rows


def _answer(end: Connection, until: float) -> tuple[Any, ...] | str:
    try:
        if not wait([end], timeout=max(0.0, until - time.monotonic())):
            return "did not answer"
        row = end.recv()  # from a process that we forked
    except EOFError:
        return "ended without an answer"
    return row if isinstance(row, tuple) else str(row)


def _rank(
    rank: int, world: int, pipe: Connection, size_bytes: int, backend: str, path: str
) -> None:
    """One rank of the node's own all-to-all."""
    import torch

    from engine.comm.scratch import ScratchGroup, file_store

    torch.set_num_threads(1)
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        store = file_store(path, world)
        group = ScratchGroup(store, rank, world, backend=backend, timeout_s=_NODE_TIMEOUT_S)
        pipe.send(tuple(measure_all_to_all(group, size_bytes)))
        with contextlib.suppress(EngineError):
            group.barrier()
    except EngineError as error:
        pipe.send(error.what)
