#!/usr/bin/env python3
"""Fail every operation on a store, of any kind that fsspec reaches, then judge what is left.

    python store_sweep.py --url memory://sweep --url s3://bucket/sweep --url hdfs://127.0.0.1:19000/sweep

A wrapper around the store makes the n-th state-changing operation of a role fail, for every n: the
process is gone before, after or in the middle of it, the call fails, or it claims success and does
nothing. Roles are the saver in step, the flusher with its commit and retention, and prune. Judged
as in crash_ours.py. One JSON line per store, role and fault. `--every 3` takes a spread, for a
store that is slow; the environment tells clients of S3 where it is (s3_local.py).
"""

import argparse
import contextlib
import json
import logging
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import plain_state
from plain_state import judge, save
from random_kills import OPTIONS, is_done, snapshot

import engine.ckpt.prune
from engine.ckpt.arena import Spool
from engine.ckpt.catalog import catalog
from engine.ckpt.flush import Flusher
from engine.ckpt.prune import Retention, plan_prune, prune
from engine.ckpt.store import open_store
from engine.errors import CheckpointError, EngineError
from tests.engine.ckpt.faulty import FAULTS, FaultyStore, Killed

COLUMNS = 64
ROLES = ("save", "flush", "prune")


def act(role: str, root: str, spool: Path, store: FaultyStore) -> set[int]:
    """What the role does on a store that will fail; returns the steps reported as committed."""
    reported: set[int] = set()
    with contextlib.suppress(Killed, CheckpointError):
        if role == "save":
            plain_state.open_store = lambda where: store
            save(root, 2, COLUMNS)
            reported.add(2)
        elif role == "prune":
            engine.ckpt.prune.open_root = lambda where: store
            prune(root, plan_prune(root, Retention(last=1)))
        else:
            flush(root, spool, store, reported)
    plain_state.open_store, engine.ckpt.prune.open_root = open_store, REAL_ROOT
    return reported


REAL_ROOT = engine.ckpt.prune.open_root


def flush(root: str, spool: Path, store: object, reported: set[int]) -> None:
    """The flusher's loop until nothing is left."""
    flusher = Flusher(Spool(spool), OPTIONS)
    flusher.stores[root] = store
    for _ in range(200):
        flusher._not_before.clear()
        flusher.round(map)
        if flusher.status.committed_step > 0:
            reported.add(flusher.status.committed_step)
        if is_done(flusher.spool):
            return


def one_point(role: str, fault: str, at: int, base: str) -> tuple[bool, str]:
    """Fail operation `at`; whether there was one, and what is wrong afterwards."""
    root, memory = f"{base}/{uuid.uuid4().hex}", Path(tempfile.mkdtemp(prefix="sweep-"))
    try:
        for step in (1, 2, 3) if role == "prune" else (1,):
            save(root, step, COLUMNS)
        if role == "flush":
            snapshot(Spool(memory), root, 2, COLUMNS)
        store = FaultyStore(open_store(root), at, fault)
        reported = act(role, root, memory, store) | {3 if role == "prune" else 1}
        wrong = ""
        try:
            judge(root, reported, COLUMNS)
            if role == "flush":
                flush(root, memory, open_store(root), reported)
            save(root, 9, COLUMNS)
            judge(root, reported | {9}, COLUMNS)
            later = max(info.created_s for info in catalog(root)) + 1e6
            prune(root, plan_prune(root, Retention(last=9), now_s=later))
            left = {info.state for info in catalog(root)}
            assert left == {"committed"}, f"prune leaves {left}"
            unfinished = open_store(root).uploads()
            assert not unfinished, f"prune leaves {unfinished}"
        except (AssertionError, EngineError) as error:
            wrong = f"{role} {fault} {at}: {error}"[:200]
        return store.count > at, wrong
    finally:
        shutil.rmtree(memory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--roles", default=",".join(ROLES))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--every", type=int, default=1, help="only each so many-th operation")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    violations = 0
    for url in args.url:
        for role in args.roles.split(","):
            for fault in args.faults.split(","):
                points, at, bad, begin = 0, 0, [], time.time()
                while True:
                    hit, wrong = one_point(role, fault, at, url)
                    bad += [wrong] if wrong else []
                    if not hit:
                        break
                    points, at = points + 1, at + args.every
                violations += len(bad)
                row = {"store": url.partition("://")[0], "role": role, "fault": fault,
                       "points": points, "violations": len(bad), "where": bad[:5],
                       "seconds": round(time.time() - begin, 1)}  # fmt: skip
                print(json.dumps(row), flush=True)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
