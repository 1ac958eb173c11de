"""Processes of a job under test, found as an outsider finds them: by logs and command lines."""

import os
from pathlib import Path

from engine.job.processes import executor_of
from engine.processes import family_of, parent_of


def rank_pid(folder: Path, rank: int) -> int:
    """Process of a rank, by the log that it writes, and not one that it started; 0 if none."""
    log = str(folder / "log" / f"rank-{rank:05d}.log")
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(path) == log:
                found.add(int(path.parts[2]))
        except OSError:
            continue
    return next((pid for pid in found if parent_of(pid) not in found), 0)


def node_family(folder: Path, node: str) -> list[int]:
    """The executor of a node that joined this job, and all below it."""
    pid = executor_of(folder, node)
    return family_of(pid) if pid else []
