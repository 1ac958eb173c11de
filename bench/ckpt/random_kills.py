#!/usr/bin/env python3
"""Kill the flusher at random moments of its work: nothing reported may be lost.

    python random_kills.py --count 1000

Two ranks' snapshots lie in shared memory; a flusher (a forked process with the loop of
engine/ckpt/flush.py) writes, commits and prunes them and gets SIGKILL after a random time, shorter
or longer than its work. Then everything that it had reported as committed must be listed, verify
and load exactly, and the next flusher goes on from what is there. When a snapshot is done the next
step is taken; retention keeps two. One JSON line of totals.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from plain_state import WORLD, image_of, judge, values

from engine.ckpt.arena import CommitJob, Spool, Ticket, map_slot
from engine.ckpt.catalog import folder_name
from engine.ckpt.flush import Flusher, FlushOptions
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.save import describe_part

OWNER = "campaign"
OPTIONS = FlushOptions(threads=1, retry_first_s=0.001, retry_most_s=0.01)


def snapshot(spool: Spool, root: Path, step: int, columns: int) -> None:
    """What the trainers of all ranks leave in slot 0: image, ticket, and rank 0's commit job."""
    meta, folder = CheckpointMeta(step=step), folder_name(step)
    for rank in range(WORLD):
        image = image_of(rank, columns)
        memory = np.frombuffer(map_slot(spool.image(rank, 0), image.bytes, create=True), np.uint8)
        memory[: len(image.header)] = np.frombuffer(image.header, np.uint8)
        for piece, offset in zip(image.planned, image.offsets, strict=True):
            memory[offset : offset + piece.bytes] = values(step, piece).view(np.uint8)
        part = describe_part(image, f"rank-{rank:05d}.safetensors", "", rank=rank)
        if rank == 0:
            job = CommitJob(root=str(root), folder=folder, world=WORLD, meta=meta,
                            created_s=time.time(), keep=2, owner=OWNER)  # fmt: skip
            spool.write_job(folder, job)
        spool.write_ticket(
            rank, 0,
            Ticket(state="pending", root=str(root), folder=folder, world=WORLD, meta=meta,
                   part=part, owner=OWNER),
        )  # fmt: skip


def is_done(spool: Spool) -> bool:
    return not spool.pending() and not spool.jobs()


def flush_in_child(spool: Spool) -> int:
    """A process that flushes until nothing is left; returns its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            flusher = Flusher(spool, OPTIONS)
            while not is_done(spool):
                flusher.round(map)
            code = 0
        finally:
            os._exit(code)
    return pid


def campaign(base: Path, memory: Path, count: int, columns: int, seed: int) -> dict[str, object]:
    """All kills; the totals."""
    chance, root, spool = random.Random(seed), base / "ckpt", Spool(memory)
    step, kills, finished, reported = 1, 0, 0, set()
    start = time.perf_counter()
    snapshot(spool, root, step, columns)
    os.waitpid(flush_in_child(spool), 0)
    took = time.perf_counter() - start
    while kills < count:
        begin = time.perf_counter()
        pid = flush_in_child(spool)
        time.sleep(chance.uniform(0, 1.3 * took))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status)
        kills += killed
        if not killed:
            took = 0.8 * took + 0.2 * (time.perf_counter() - begin)
            finished += 1
        else:
            took *= 1.01  # so that kills do not all come too early on a machine that got slower
        if spool.status().committed_step == step:
            reported = {step} | ({step - 1} & reported)
        found = judge(root, reported, columns)
        if is_done(spool):
            assert step in found, f"step {step} is done and not there"
            step += 1
            snapshot(spool, root, step, columns)
    return {
        "kills": kills, "steps_committed": step - 1, "ended_before_the_kill": finished,
        "violations": 0, "bytes": 2 * image_of(0, columns).bytes, "drain_s": round(took, 3),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=6000, help="size of the state")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where to write; default: a temporary folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    base = Path(tempfile.mkdtemp(prefix="kills-", dir=args.dir))
    memory = Path(tempfile.mkdtemp(prefix="kills-", dir="/dev/shm"))
    try:
        print(json.dumps(campaign(base, memory, args.count, args.columns, args.seed)))
    finally:
        shutil.rmtree(base, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


if __name__ == "__main__":
    main()
