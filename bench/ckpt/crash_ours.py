#!/usr/bin/env python3
"""Fail our own checkpoints at every system call of every role, then judge what is left.

    python crash_ours.py sweep --roles save,flush,commit,prune,trainer --faults kill,ENOSPC,EIO,lost

Roles, each a program that strace can stop at any call that changes the folder:

    save     ranks write their files in step, rank 0 commits
    flush    the flusher drains two snapshots, commits them and keeps the newest two
    prune    three checkpoints become one
    trainer  a rank snapshots two steps into shared memory (its writes are to memory only)

Each prints a step when it reports it as committed. The judge uses the store alone, in this process:
what was reported is listed, verifies and loads exactly; a flusher started anew finishes what is in
memory; the next save succeeds; what is left over is found by prune, and only that.
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from crash_sweep import sweep
from plain_state import judge, save
from random_kills import OPTIONS, is_done, snapshot

from engine.ckpt.arena import Spool
from engine.ckpt.catalog import catalog
from engine.ckpt.flush import Flusher
from engine.ckpt.prune import Retention, plan_prune, prune
from engine.ckpt.store import open_store
from engine.errors import EngineError

COLUMNS = 64
ROLES = ("save", "flush", "prune", "trainer")
FAULTS = ("kill", "ENOSPC", "EIO", "lost")


def act(role: str, folder: Path) -> None:
    """What the role does; prints steps as they are committed."""
    root = folder / "ckpt"
    if role == "save":
        for step in (2, 3):
            save(root, step, COLUMNS)
            print(step, flush=True)
    elif role == "prune":
        prune(root, plan_prune(root, Retention(last=1)))
    elif role == "flush":
        flush(folder, say=True)
    else:
        snapshot_as_trainer(folder)


def flush(folder: Path, *, say: bool = False, rounds: int = 400) -> None:
    """The loop of the flusher, in this process, until nothing is left."""
    spool = Spool(folder / "spool")
    flusher, said = Flusher(spool, OPTIONS), set()
    for _ in range(rounds):
        flusher.round(map)
        step = flusher.status.committed_step
        if say and step > 0 and step not in said:
            said.add(step)
            print(step, flush=True)
        if is_done(spool):
            return


def snapshot_as_trainer(folder: Path) -> None:
    """One rank's real TwoStage, two steps, without a flusher."""
    import numpy as np
    import torch
    from plain_state import WORLD, planned, values

    from engine.ckpt.manifest import CheckpointMeta
    from engine.ckpt.piece import Piece
    from engine.ckpt.two_stage import TwoStage

    TwoStage._ensure_flusher = lambda self: None
    plans = [plan for rank in range(WORLD) for plan in planned(rank, COLUMNS)]
    pieces = [
        Piece(name=p.name, slot=p.slot, global_shape=p.region.shape, box=p.region.box,
              flat=p.region.flat, tensor=torch.zeros(p.region.size))
        for p in plans
    ]  # fmt: skip
    two = TwoStage(
        folder / "ckpt", pieces, rank=0, world=1, gather=lambda item: [item],
        spool=folder / "spool",
    )  # fmt: skip
    for step in (2, 3):
        for piece, plan in zip(pieces, plans, strict=True):
            piece.tensor.copy_(torch.from_numpy(np.ascontiguousarray(values(step, plan))))
        two.begin(pieces, CheckpointMeta(step=step))
        two.finish()
        for piece in pieces:
            piece.tensor.zero_()


def template(role: str, folder: Path) -> None:
    """What is there before: one old checkpoint; three for prune; two snapshots for the flusher."""
    for step in (1, 2, 3) if role == "prune" else (1,):
        save(folder / "ckpt", step, COLUMNS)
    if role == "flush":
        snapshot(Spool(folder / "spool"), folder / "ckpt", 2, COLUMNS)
    if role == "trainer":
        Spool(folder / "spool")


def check(role: str, folder: Path, said: Path) -> tuple[bool, str]:
    """Invariants I1 to I5 and I7; the verdict and what is wrong."""
    root = folder / "ckpt"
    try:
        reported = {int(line) for line in said.read_text().split()}
        # retention keeps two: of what was reported, the newest two must be there
        must = set(sorted(reported)[-2:]) | ({3} if role == "prune" else set())
        judge(root, must, COLUMNS)
        if (folder / "spool").is_dir():
            flush(folder)
            judge(root, must, COLUMNS)
        save(root, 9, COLUMNS)
        steps = judge(root, must | {9}, COLUMNS)
        later = max(info.created_s for info in catalog(root)) + 1e6
        prune(root, plan_prune(root, Retention(last=len(steps)), now_s=later))
        left = {info.state for info in catalog(root)}
        assert left == {"committed"}, f"prune leaves {left}"
        drafts = open_store(root).uploads()
        assert not drafts, f"prune leaves {drafts}"
        assert judge(root, must | {9}, COLUMNS) == steps, "prune took a valid one"
    except (AssertionError, EngineError, OSError) as error:
        return False, str(error)[:200]
    return True, ""


def one_sweep(role: str, fault: str, most: int, base: str | None) -> dict:
    """All points of a role with a fault."""
    root = tempfile.mkdtemp(prefix="crash-ours-", dir=base)
    start = os.path.join(root, "start")
    command = f"{sys.executable} {__file__} act {role} {{dir}}"
    try:
        # absolute paths are in the snapshots' tickets, so the template is made where it will run
        template(role, Path(root, "d"))
        shutil.copytree(os.path.join(root, "d"), start)
        found = sweep(
            command, lambda d, said: check(role, Path(d), Path(said)), fault, root=root,
            start_from=start, most=most,
        )  # fmt: skip
        return {"role": role, **found}
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    if sys.argv[1:2] == ["act"]:
        act(sys.argv[2], Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sweep"])
    parser.add_argument("--roles", default=",".join(ROLES))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--max", type=int, default=0, help="points of each, evenly spread; 0 = all")
    parser.add_argument("--dir", help="where to write; default: a temporary folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    violations = 0
    for role in args.roles.split(","):
        for fault in args.faults.split(","):
            row = one_sweep(role, fault, args.max, args.dir)
            violations += row["violations"]
            print(json.dumps(row), flush=True)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
