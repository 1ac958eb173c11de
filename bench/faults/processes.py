"""Processes of a job under test, found as an outsider finds them: by logs and command lines."""

import os
import sys
from pathlib import Path

from engine.job.drills import family_of


def rank_pid(folder: Path, rank: int) -> int:
    """Process of a rank, by the log that it writes; 0 if there is none."""
    log = str(folder / "log" / f"rank-{rank:05d}.log")
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(path) == log:
                return int(path.parts[2])
        except OSError:
            continue
    return 0


def node_family(folder: Path, node: str) -> list[int]:
    """The executor of a node that joined this job, and all below it."""
    wanted = [sys.executable, "-m", "engine.job.join", str(folder), node]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:5] == [word.encode() for word in wanted]:
            return family_of(int(path.name))
    return []
