"""Restarts from memory: a killed rank from its node's, a lost node from its partner's, no store.

    python -m bench.faults.memory --out build/memory --times 5

The campaign's job with `checkpoint.partner`, nodes in network namespaces; in turn with ZeRO and
without, where all replicas but one hold nothing but copies. At a random moment the whole store is
taken away, and in turn a rank is killed, or all processes of a node and its memory with them; a
spare takes its place. What the ranks go on from can then only come from memory. Each must lose no
step that a snapshot had, and the losses must be those of a job that nothing happened to, bit by
bit. Appends a row for each to rows.jsonl; exit 1 if one is wrong. Needs root.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.faults.campaign import LIMIT_S, NODES, RECIPE, SPARES, Job, losses, reference
from bench.faults.hit import RANKS, kill
from bench.faults.net import Network
from bench.faults.rows import append_rows
from engine.ckpt.arena import spool_folder
from engine.train.resume import checkpoint_root, run_identity

EVERY = 5
_FIRST, _MOMENTS, _SETTLE_STEPS = 17, 10, 8
_COPIED = 3
"""Steps after which the partner has a snapshot; a rank's own node has it after the next step."""
FAULTS = ("kill", "node-kill")
ZEROS = (2, 0)
_RESUMED = re.compile(r"resumed from step (\d+), which was still in memory")


def recipe(zero: int) -> str:
    """The campaign's, with partners."""
    text = RECIPE.replace("keep = 3\n", "keep = 3\npartner = true\n")
    return text.replace("dp = 2\n", f"dp = 2\nzero = {zero}\n")


def memory_of(run: Path, node: str) -> Path:
    """Where a node keeps the run's snapshots."""
    return spool_folder(f"{checkpoint_root(run, '')}#{run_identity(run)}", node)


def take_store(run: Path) -> None:
    """Every checkpoint so far leaves the store."""
    away = run / "away"
    away.mkdir()
    for folder in (run / "ckpt").glob("step-*"):
        with contextlib.suppress(FileNotFoundError):  # retention was faster
            folder.rename(away / folder.name)


def strike(job: Job, fault: str, rank: int) -> str:
    """Do it; returns the node that was hit."""
    node = job.node_of(rank)
    pids = job.pids(node) if fault == "node-kill" else [job.rank_pid(rank)]
    take_store(job.folder)
    for pid in pids:
        kill(pid, signal.SIGKILL)
    if fault == "node-kill":
        place = memory_of(job.folder, node)
        if not place.is_dir():
            raise SystemExit(f"{place}: the node had no memory to lose")
        shutil.rmtree(place)
    return node


def texts(run: Path) -> str:
    """All that ranks have said."""
    return "\n".join(
        path.read_text(errors="replace")
        for path in [*run.rglob("log/rank-*.log"), *run.glob("incidents/*/log/*")]
        if path.is_file()
    )


def one(out: Path, fault: str, zero: int, seed: int) -> dict:
    """A job of its own with one fault, and what came of it."""
    rng = random.Random(seed)
    place = out / f"zero-{zero}"
    folder, rank = place / f"{fault}-{seed}", rng.randrange(RANKS)
    job = Job(folder, [], recipe=recipe(zero))
    try:
        at = _FIRST + rng.randrange(_MOMENTS)
        if not job.wait(at, 300.0):
            raise SystemExit(f"the job does not reach step {at}: {folder}/driver.log")
        before, when = job.step(), time.time()
        node = strike(job, fault, rank)
        healthy = job.wait_restart(LIMIT_S) and job.wait(before + _SETTLE_STEPS, LIMIT_S)
        found = [r for r in job.recoveries() if r.decision and r.stepped_s is not None]
        job.driver.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.driver.wait(120)
    finally:
        job.end()
    said = texts(folder)
    resumed = sorted({int(step) for step in _RESUMED.findall(said)})
    row = {
        "fault": fault, "zero": zero, "step": before, "node": node, "rank": rank,
        "healthy": healthy,
        "resumed_from": resumed, "steps_lost": max((r.steps_lost for r in found), default=-1),
        "from_store": "resumed from step" in _RESUMED.sub("", said) or "read bytes=" in said,
        "first_step_s": round(found[0].incident.time_s - when + (found[0].stepped_s or 0), 2)
        if found else None,
        "load": os.getloadavg()[0], "seed": seed,
    }  # fmt: skip
    mine = losses(folder)
    same = losses(reference(place, len(mine), recipe(zero)))
    row["bitwise"] = bool(mine) and mine == same[: len(mine)]
    copied = before - _COPIED if fault == "node-kill" else before - 1
    row["passed"] = (
        healthy and row["bitwise"] and not row["from_store"]
        and len(resumed) == 1 and resumed[0] >= copied - copied % EVERY
    )  # fmt: skip
    return row


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.memory")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    args.out = args.out.resolve()  # processes are found by the full path of their run folder
    args.out.mkdir(parents=True, exist_ok=True)
    seed, wrong = int(time.time()) % 1_000_000, 0
    with Network(NODES + SPARES):
        for number in range(args.times):
            for fault, zero in itertools.product(FAULTS, ZEROS):
                row = one(args.out, fault, zero, seed + number)
                wrong += not row["passed"]
                print(json.dumps(row), flush=True)
                append_rows(args.out, [row])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
