"""Logs of a large job that ends badly: one rank writes the lines of a case, the rest their wake.

    python bench/diagnose/biglogs.py OUT CASE.log [--ranks 2048] [--kb 4] [--seed 0]

Every rank writes healthy lines; then the failing rank writes the case, and after a time-out the
others write what NCCL and torchrun print because it is gone. Clocks of nodes differ by up to two
seconds, and healthy ranks hold decoys: an ECC error in a hint, an out-of-memory error that was
caught.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

START_S, STEP_S, TIMEOUT_S, SKEW_S = 1_790_000_000.0, 6.34, 600, 2.0
HINT = "hint: an uncorrectable ECC error or Xid 79 means the GPU must be reset, see the run book"
CAUGHT = "WARNING caught torch.OutOfMemoryError: CUDA out of memory while probing batch size 8"


def stamp(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t)) + f",{int(t % 1 * 1000):03d}"


def glog(t: float) -> str:
    return time.strftime("E%m%d %H:%M:%S", time.gmtime(t)) + f".{int(t % 1 * 1e9):09d}"


def write_logs(folder: Path, case: Sequence[str], *, ranks: int, kb: int, seed: int) -> int:
    """Write rank_N.log of every rank; the failing rank is returned."""
    rng = random.Random(seed)
    bad = rng.randrange(ranks)
    skews = [rng.uniform(-SKEW_S, SKEW_S) for _ in range((ranks + 7) // 8)]
    steps = max(20, kb * 1024 // 220)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        own = random.Random(seed * 100_003 + rank)
        lines = healthy(rank, ranks, steps, skews[rank // 8], own)
        if rank == bad:
            lines += case
        else:
            fault = START_S + steps * STEP_S + 2 + TIMEOUT_S + skews[rank // 8]
            lines += wake(rank, ranks, bad, 4 * steps + 2, fault + own.random() * 0.9, own)
        (folder / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")
    return bad


def healthy(rank: int, ranks: int, steps: int, skew: float, own: random.Random) -> list[str]:
    node, local, pid = rank // 8, rank % 8, 3000 + rank
    lines = [
        f"{stamp(START_S + skew - 40)} [rank{rank}] INFO start pid={pid} node={node} "
        f"local_rank={local} world={ranks}",
        f"node{node}:{pid}:{pid} [{local}] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0",
    ]
    lines += [HINT] if own.random() < 0.01 else []
    lines += [CAUGHT] if own.random() < 0.01 else []
    for n in range(steps):
        at = START_S + n * STEP_S + skew + own.random() * 0.01
        lines.append(
            f"{stamp(at)} [rank{rank}] INFO iteration {n + 1:8d}/{500_000:8d} | elapsed time per "
            f"iteration (ms): {6340 + own.gauss(0, 25):.1f} | lm loss: "
            f"{2.1 + own.gauss(0, 0.01):.6E} | grad norm: {0.31 + own.gauss(0, 0.02):.3f}"
        )
    return lines


def wake(rank: int, ranks: int, bad: int, seq: int, at: float, own: random.Random) -> list[str]:
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    how = own.random()
    last = f"last enqueued work: {seq + 2}, last completed work: {seq - 1}"
    if how < 0.55:
        lines = [
            f"[rank{rank}]:[{glog(at)} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
            f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8388, "
            f"NumelOut=8388, Timeout(ms)={TIMEOUT_S}000) ran for {TIMEOUT_S}0"
            f"{own.randrange(10, 99)} milliseconds before timing out.",
            f"[rank{rank}]:[{glog(at + 0.1)} ProcessGroupNCCL.cpp:2271] {group}  failure detected "
            f"by watchdog at work sequence id: {seq} PG status: {last}",
        ]
    elif how < 0.8:
        lines = [
            f"[rank{rank}]:[{glog(at)} ProcessGroupNCCL.cpp:1743] {group} Received a dump signal "
            f"due to a collective timeout from  rank {rank * 7 % ranks} and we will try our best "
            "to dump the debug info."
        ]
    else:
        address = f"[10.0.{bad // 8 // 250}.{bad // 8 % 250}]:{own.randrange(20_000, 60_000)}"
        lines = [f"[rank{rank}]: RuntimeError: [pair.cc:534] Connection closed by peer {address}"]
    if rank % 8 == 0 and rank // 8 == bad // 8:
        victim = bad if own.random() < 0.5 else rank
        lines += [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "Root Cause (first observed failure):",
            f"  host      : node{rank // 8}",
            f"  rank      : {victim} (local_rank: {victim % 8})",
            f"  exitcode  : 1 (pid: {3000 + victim})",
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("case", type=Path)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--kb", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lines = given.case.read_text().rstrip("\n").split("\n")
    bad = write_logs(given.out, lines, ranks=given.ranks, kb=given.kb, seed=given.seed)
    print(f"{given.out}: {given.ranks} ranks, rank {bad} wrote {given.case.name}")


if __name__ == "__main__":
    main()
