"""Run a function on several ranks, forked from one warm nursery as the product does it.

`World.run("module:function", ranks, args)` calls `function(rank, meet, args)` on every rank and
returns what they return, in order of rank. Arguments and results are JSON.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from engine.comm.listen import listening_socket
from engine.comm.world import Rendezvous
from engine.job.nursery import Report, Signal, Start
from engine.train.task import RankTask

ROOT = Path(__file__).resolve().parent.parent


class World:
    """A nursery for tests; close it when done."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.job.nursery", str(theirs.fileno()), "bench.ranks:body"],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        theirs.close()
        self._buffer = b""
        self._collect("ready", [], 1, deadline_s=120)

    def run(
        self, function: str, ranks: int, args: Any = None, *, deadline_s: float = 120
    ) -> list[Any]:
        """Results of all ranks; AssertionError with the failing rank's log if one fails.

        A rank that leaves by `os._exit(0)` has the result None.
        """
        with tempfile.TemporaryDirectory() as folder, listening_socket("127.0.0.1", 0) as meet:
            Path(folder, "case.json").write_text(json.dumps({"function": function, "args": args}))
            task = RankTask(
                folder=folder, world=ranks, host="127.0.0.1", port=meet.getsockname()[1]
            )
            start = msgspec.json.encode(Start(ranks=tuple(range(ranks)), task=task))
            socket.send_fds(self._control, [start + b"\n"], [meet.fileno()])
            ended: list[Report] = []
            try:
                self._collect("exit", ended, ranks, deadline_s=deadline_s)
            finally:  # what is left of this run must not reach into the next one
                kill = msgspec.json.encode(Signal(signal=9))
                self._control.sendall(kill + b"\n")
                failed = [report for report in ended if report.code]
                self._collect("exit", ended, ranks, deadline_s=20, to_the_end=True)
            for report in failed:
                log = Path(folder, "log", f"rank-{report.rank:05d}.log").read_text()
                raise AssertionError(f"rank {report.rank} ended with {report.code}:\n{log}")
            return [_result(Path(folder, f"result-{rank}.json")) for rank in range(ranks)]

    def _collect(
        self,
        event: str,
        found: list[Report],
        count: int,
        *,
        deadline_s: float,
        to_the_end: bool = False,
    ) -> None:
        """Gather reports of a kind until there are `count`, or one of a failure."""
        end = time.monotonic() + deadline_s
        while len(found) < count and (to_the_end or not any(r.code for r in found)):
            self._control.settimeout(max(0.01, end - time.monotonic()))
            data = self._control.recv(1 << 16)
            assert data, "the nursery ended"
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            reports = [msgspec.json.decode(line, type=Report) for line in lines]
            found += [r for r in reports if r.event == event]

    def close(self) -> None:
        """End the nursery."""
        self._control.close()
        self._process.wait(timeout=20)


def _result(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def body(rank: int, task: RankTask, listen_fd: int) -> int:
    """What a rank of a test does."""
    case = json.loads(Path(task.folder, "case.json").read_text())
    module, _, name = case["function"].partition(":")
    meet = Rendezvous(task.host, task.port, listen_fd if rank == 0 else -1)
    try:
        result = getattr(importlib.import_module(module), name)(rank, meet, case["args"])
    except BaseException:
        traceback.print_exc()
        return 1
    Path(task.folder, f"result-{rank}.json").write_text(json.dumps(result))
    return 0
