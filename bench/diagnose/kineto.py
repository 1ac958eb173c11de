"""Traces shaped like torch.profiler's on CUDA, with a slow rank and clocks that disagree.

    python bench/diagnose/kineto.py OUT [--slow 5] [--skew-us 3000] [--comm-us 150] [--old] [--gz]

Each step: a forward and a backward GEMM kernel a layer on stream 7, one all-reduce a layer on
stream 20. It cannot start before every rank has reached it: the fast ranks' NCCL kernels grow, the
slow rank's stay short. --old: names of NCCL before 2.19. --ops: small host ops, to set the size.
"""

import argparse
import gzip
import json
import random
from pathlib import Path

NEW = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OLD = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


class Rank:
    """The events of one rank, its host and its device clock in microseconds."""

    def __init__(self, rank: int, skew_us: float, seed: int) -> None:
        self.rank, self.skew_us = rank, skew_us
        self.rng = random.Random(seed * 7919 + rank)
        self.host, self.device, self.number = 5e9, 5e9 + 50, 1000
        self.events: list[dict[str, object]] = []

    def add(self, category: str, name: str, ts: float, dur: float, tid: int, **args) -> None:
        self.events.append({
            "ph": "X", "cat": category, "name": name,
            "pid": self.rank % 8 if category == "kernel" else 4000 + self.rank, "tid": tid,
            "ts": round(ts + self.skew_us, 3), "dur": round(dur, 3), "args": args,
        })  # fmt: skip

    def launch(self, name: str, stream: int, start: float, dur: float, **more) -> None:
        self.number += 1
        tie = {"External id": self.number, "correlation": self.number}
        self.add("cuda_runtime", "cudaLaunchKernel", self.host, 6.0, 4000 + self.rank, **tie)
        place = {"device": self.rank % 8, "context": 1, "stream": stream}
        self.add("kernel", name, start, dur, stream, **tie, **place, **more)


def write_traces(
    folder: Path, *, ranks: int = 8, steps: int = 6, layers: int = 24, ops: int = 4,
    slow: int | None = None, factor: float = 1.1, skew_us: float = 3000.0, comm_us: float = 150.0,
    nccl: str = NEW, gz: bool = False, seed: int = 0,
) -> None:  # fmt: skip
    """rank-N.json[.gz] of every rank; `slow` is the rank whose GEMMs take longer."""
    everyone = [
        Rank(r, random.Random(seed + 31 * r + 5).uniform(-skew_us, skew_us), seed)
        for r in range(ranks)
    ]
    for step in range(steps):
        for phase, base in (("forward", 400.0), ("backward", 800.0)):
            for layer in range(layers):
                for one in everyone:
                    _gemm(one, base * (factor if one.rank == slow else 1.0), ops)
                if phase == "backward":
                    _reduce(everyone, nccl, comm_us, step * layers + layer)
            if phase == "backward":
                last = max(one.device for one in everyone) + comm_us + 10
                for one in everyone:
                    one.device = max(one.device, last)
        for one in everyone:
            one.launch("multi_tensor_apply_kernel", 7, one.device, 300.0)
            one.device += 300.0
            one.host = one.device + 20.0
    folder.mkdir(parents=True, exist_ok=True)
    for one in everyone:
        _write(folder, one, ranks, gz)


def _gemm(one: Rank, length: float, ops: int) -> None:
    for _ in range(ops):
        one.add("cpu_op", "aten::view", one.host, 3.0, 4000 + one.rank)
        one.host += 4.0
    length *= 1 + one.rng.gauss(0, 0.01)
    start = max(one.device, one.host + 8)
    one.launch(GEMM, 7, start, length)
    one.device = start + length
    one.host += 20.0


def _reduce(everyone: list[Rank], nccl: str, comm_us: float, seq: int) -> None:
    ready = max(one.device for one in everyone)
    about = {
        "Collective name": "allreduce", "In msg nelems": 8_388_608, "Group size": len(everyone),
        "dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(len(everyone)))), "Seq": seq,
    }  # fmt: skip
    for one in everyone:
        one.add("cpu_op", "record_param_comms", one.host, 5.0, 4000 + one.rank, **about)
        one.launch(nccl, 20, one.device + 3, ready - one.device + comm_us, **about)
        one.host += 10.0


def _write(folder: Path, one: Rank, ranks: int, gz: bool) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks, "ranks": [*range(ranks)]}
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl", "rank": one.rank, "world_size": ranks, "pg_config": [group],
        },
        "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": one.events,
    }  # fmt: skip
    data = json.dumps(trace).encode()
    path = folder / f"rank-{one.rank}.json{'.gz' if gz else ''}"
    path.write_bytes(gzip.compress(data, 3) if gz else data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ops", type=int, default=4)
    parser.add_argument("--slow", type=int)
    parser.add_argument("--skew-us", type=float, default=3000.0)
    parser.add_argument("--comm-us", type=float, default=150.0)
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--gz", action="store_true")
    given = parser.parse_args()
    write_traces(
        given.out, ranks=given.ranks, steps=given.steps, ops=given.ops, slow=given.slow,
        skew_us=given.skew_us, comm_us=given.comm_us, nccl=OLD if given.old else NEW, gz=given.gz,
    )  # fmt: skip


if __name__ == "__main__":
    main()
