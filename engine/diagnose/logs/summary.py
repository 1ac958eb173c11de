"""The end that torchrun or srun reports: whose exit code a line is, which worker failed first.

torchrun ends with a table:

    Failures:                               Root Cause (first observed failure):
    [1]:                                    [0]:
      rank      : 1 (local_rank: 1)           rank      : 0 (local_rank: 0)
      exitcode  : -7 (pid: 467398)            exitcode  : -7 (pid: 467397)

One line of it says neither; the lines around it do. A worker without a traceback of its own is
named nowhere else in a merged log.
"""

import re
from pathlib import Path
from typing import NamedTuple

from engine.diagnose.logs.scan import FileScan

ENTRY = re.compile(r"(?:^|\s)(?:exitcode|traceback) +: ")
"""A line of the table that tells how a worker ended."""
ROOT = "Root Cause (first observed"
_FIRST = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d{1,7})\b")
"""What the agent of a node prints before the table."""
_TASK = re.compile(r"^srun: error: \S+: task (\d{1,7}): Exited with exit code (\d{1,3})\b")
"""What Slurm prints of a task that failed by itself; several at once are those that it ended."""
_RANK = re.compile(rb"\brank +: (\d{1,7}) \(local_rank")
_CODE = re.compile(rb"\bexitcode +: (-?\d{1,4}) \(pid")
_AROUND = 1024


class Failed(NamedTuple):
    """One worker of the table."""

    rank: int
    code: int
    line: int
    """Of its exit code, 0 if it is not known."""
    text: str
    root: bool
    """torchrun saw this one fail first."""


def entry_above(scan: FileScan, offset: int) -> tuple[int, bool] | None:
    """Rank of the entry that the line at `offset` belongs to, and whether it is the root cause."""
    start = max(0, offset - _AROUND)
    above = read_part(scan.path, start, offset - start)
    found = [*_RANK.finditer(above)]
    if not found:
        return None
    heads = (above.rfind(ROOT.encode()), above.rfind(b"Failures:"))
    return int(found[-1][1]), heads[0] > heads[1]


def first_failed(scan: FileScan, offset: int, line: int, text: str) -> Failed | None:
    """The worker that failed first, from the line that announces it."""
    said = _FIRST.search(text)
    if said is not None:
        return Failed(int(said[2]), int(said[1]), line, text, root=False)
    task = _TASK.search(text)
    if task is not None:
        return Failed(int(task[1]), int(task[2]), line, text, root=False)
    if ROOT not in text:
        return None
    rows = read_part(scan.path, offset, _AROUND).split(b"\n")
    rank = next((found for row in rows if (found := _RANK.search(row))), None)
    for number, row in enumerate(rows):
        code = _CODE.search(row)
        if code is not None and rank is not None:
            shown = row.decode(errors="replace")
            return Failed(int(rank[1]), int(code[1]), line + number, shown, root=True)
    return None


def is_packed(path: Path) -> bool:
    """Whether places in the text are not places in the file."""
    return path.suffix in (".gz", ".zst")


def read_part(path: Path, start: int, size: int) -> bytes:
    """Some bytes of a plain log; none of one that is packed or gone."""
    if is_packed(path):
        return b""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)
    except OSError:
        return b""
