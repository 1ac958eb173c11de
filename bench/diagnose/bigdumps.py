"""Flight-recorder dumps of a large job that hangs: full ring buffers, one rank stopped calling.

    python bench/diagnose/bigdumps.py OUT [--ranks 512] [--entries 2000] [--seed 0]

tp 8, pp 4, dp the rest, in the form NCCL dumps of torch 2.9 have. Every rank's buffer holds
finished calls of its tensor, pipeline and data groups. In the last step one rank does not call its
tensor group's next gather any more: its tensor peers wait for it there, later stages wait for the
tensor peers' activations. Prints the rank.
"""

import argparse
import pickle
import random
from pathlib import Path
from typing import Any

TP, PP = 8, 4
NAMES = ("TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP")
START_NS = 1_790_000_000 * 10**9


def groups_of(rank: int, ranks: int) -> list[tuple[str, list[int]]]:
    """Group name and members of a rank's three groups; ranks count tp first, then dp, then pp."""
    dp = ranks // (TP * PP)
    t, d, p = rank % TP, rank // TP % dp, rank // (TP * dp)
    tensor = [x + TP * (d + dp * p) for x in range(TP)]
    pipeline = [t + TP * (d + dp * x) for x in range(PP)]
    data = [t + TP * (x + dp * p) for x in range(dp)]
    first = [d + dp * p, 1_000_000 + t + TP * d, 2_000_000 + t + TP * p]
    return [(str(n), m) for n, m in zip(first, (tensor, pipeline, data), strict=True)]


def entry(kind: int, group: str, name: str, seq: int, at: int, *, done: bool) -> dict[str, Any]:
    """One recorded call."""
    p2p = kind == 1
    return {
        "record_id": at, "pg_id": kind + 1, "process_group": (group, NAMES[kind]),
        "thread_name": "python3", "thread_id": "23456244340032",
        "collective_seq_id": 0 if p2p else seq, "p2p_seq_id": seq if p2p else 0, "op_id": seq,
        "profiling_name": f"nccl:{name}", "time_created_ns": START_NS + at * 1_000_000,
        "input_sizes": [[4096, 1, 5120]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[32768, 1, 5120]], "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": START_NS + at * 1_000_000 if done else None,
        "time_discovered_completed_ns": START_NS + at * 1_000_000 + 400_000 if done else None,
        "retired": done, "timeout_ms": 600_000, "is_p2p": p2p,
    }  # fmt: skip


def dump_of(rank: int, ranks: int, entries: int, bad: int) -> dict[str, Any]:
    """What a rank's recorder holds when the time-out comes."""
    groups = groups_of(rank, ranks)
    pipeline = groups[1][1]
    place = pipeline.index(rank)
    rows: list[dict[str, Any]] = []
    counts = [0, 0, 0]

    def call(kind: int, name: str, *, done: bool = True) -> None:
        counts[kind] += 1
        rows.append(entry(kind, groups[kind][0], name, counts[kind], len(rows), done=done))

    while len(rows) < entries - 2:
        for name in ("_all_gather_base", "_reduce_scatter_base") * 4:
            call(0, name)
        if place:
            call(1, f"recv {place}<-{place - 1}")
        if place < PP - 1:
            call(1, f"send {place}->{place + 1}")
        if len(rows) % 50 < 10:
            call(2, "_reduce_scatter_base")
    (_, bad_tensor), (_, bad_pipeline), _ = groups_of(bad, ranks)
    hurt = {m for t in bad_tensor for m in groups_of(t, ranks)[1][1]}
    if rank in hurt and rank != bad:
        if rank in bad_tensor:
            call(0, "_all_gather_base", done=False)
        elif place > bad_pipeline.index(bad):
            call(1, f"recv {place}<-{place - 1}", done=False)
        else:
            call(1, f"recv {place}<-{place + 1}", done=False)
    status = {
        str(kind + 1): {
            "last_enqueued_collective": counts[kind], "last_started_collective": -1,
            "last_completed_collective": counts[kind] - (not _all_done(rows, kind)),
        }
        for kind in range(3)
    }  # fmt: skip
    config = {
        name: {"name": name, "desc": desc, "ranks": str(members)}
        for (name, members), desc in zip(groups, NAMES, strict=True)
    }
    return {"version": "2.9", "pg_config": config, "nccl_version": "2.27.3",
            "pg_status": status, "entries": rows[-entries:]}  # fmt: skip


def _all_done(rows: list[dict[str, Any]], kind: int) -> bool:
    return all(row["retired"] for row in rows[-4:] if row["pg_id"] == kind + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.ranks % (TP * PP):
        parser.error(f"--ranks: give a multiple of {TP * PP}")
    bad = random.Random(given.seed).randrange(given.ranks)
    given.out.mkdir(parents=True, exist_ok=True)
    for rank in range(given.ranks):
        dump = dump_of(rank, given.ranks, given.entries, bad)
        (given.out / f"_dump_{rank}").write_bytes(pickle.dumps(dump, 2))
    print(f"rank {bad} stopped calling")


if __name__ == "__main__":
    main()
