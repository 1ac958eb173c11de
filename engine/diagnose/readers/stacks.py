"""Stacks of hung ranks, faulthandler or py-spy: who is here and who is not.

The main thread's innermost frame tells whether a rank stands in a communication call or in its
own code.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from engine.diagnose.readers.files import FileFault, read_limited
from engine.diagnose.readers.names import rank_of_name

_LIMIT = 16 << 20
_FAULT = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,9}) in (.{1,200})$')
_SPY = re.compile(r"^\s{4,}(?:\d+: )?(\S.{0,200}?) \((.{1,400}?):(\d{1,9})\)")
_THREAD = re.compile(r"^(?:Current thread|Thread)\b.*")
_WAITS = re.compile(
    r"distributed_c10d|c10d_logger|torch/distributed|megatron/.*p2p|deepspeed/comm|"
    r"cuda/(?:__init__|streams)\.py|nccl|_wait_until|mpi4py"
)


class Frame(NamedTuple):
    """One frame, as `function file:line`."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """`all_reduce distributed_c10d.py:3252`."""
        return f"{self.function} at {self.file.rsplit('/', 1)[-1]}:{self.line}"


class Stack(NamedTuple):
    """The main thread of one rank, innermost frame first."""

    rank: int
    file: str
    frames: tuple[Frame, ...]

    @property
    def in_communication(self) -> bool:
        """Whether the innermost frames are those of a communication library."""
        return any(_WAITS.search(frame.file) for frame in self.frames[:3])

    @property
    def own(self) -> str:
        """The innermost frame of the program itself."""
        for frame in self.frames:
            if not _WAITS.search(frame.file) and "/lib/python" not in frame.file:
                return str(frame)
        return str(self.frames[0]) if self.frames else ""


def read_stack(path: Path) -> Stack:
    """The main thread's stack of one rank's file; FileFault if it holds none."""
    rank = rank_of_name(path.name)
    if rank is None:
        raise FileFault("its name does not tell a rank")
    text = read_limited(path, _LIMIT).decode(errors="replace")
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.split("\n"):
        if _THREAD.match(line):
            threads.append((line, []))
            continue
        frame = _frame(line)
        if frame is not None:
            if not threads:
                threads.append(("", []))
            threads[-1][1].append(frame)
    threads = [(name, frames) for name, frames in threads if frames]
    if not threads:
        raise FileFault("holds no stack")
    # py-spy names the main thread; faulthandler lists it last
    main = next((frames for name, frames in threads if "MainThread" in name), threads[-1][1])
    return Stack(rank, str(path), tuple(main[:200]))


def merge(stacks: Mapping[int, Stack]) -> dict[str, tuple[int, ...]]:
    """Where the ranks stand: own innermost frame -> ranks, rarest first."""
    here: dict[str, list[int]] = defaultdict(list)
    for rank, stack in stacks.items():
        top = f"{stack.frames[0].function} < {stack.own}" if stack.frames else "?"
        here[top].append(rank)
    rows = sorted(here.items(), key=lambda item: (len(item[1]), item[1]))
    return {where: tuple(sorted(ranks)) for where, ranks in rows}


def _frame(line: str) -> Frame | None:
    fault = _FAULT.match(line)
    if fault is not None:
        return Frame(fault[1], int(fault[2]), fault[3])
    spy = _SPY.match(line)
    return Frame(spy[2], int(spy[3]), spy[1]) if spy is not None else None
