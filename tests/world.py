"""Run a function on several ranks, forked from one warm nursery as the product forks them.

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
            [sys.executable, "-m", "engine.job.nursery", str(theirs.fileno()), "tests.world:body"],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        theirs.close()
        self._buffer = b""
        self._wait("ready", 1, deadline_s=120)

    def run(
        self, function: str, ranks: int, args: Any = None, *, deadline_s: float = 120
    ) -> list[Any]:
        """Results of all ranks; AssertionError with the failing rank's log if one fails."""
        with tempfile.TemporaryDirectory() as folder, listening_socket("127.0.0.1", 0) as meet:
            Path(folder, "case.json").write_text(json.dumps({"function": function, "args": args}))
            task = RankTask(
                folder=folder, world=ranks, host="127.0.0.1", port=meet.getsockname()[1]
            )
            start = msgspec.json.encode(Start(ranks=tuple(range(ranks)), task=task))
            socket.send_fds(self._control, [start + b"\n"], [meet.fileno()])
            try:
                ended = self._wait("exit", ranks, deadline_s=deadline_s)
            finally:
                kill = msgspec.json.encode(Signal(signal=9))
                self._control.sendall(kill + b"\n")
            for report in ended:
                log = Path(folder, "log", f"rank-{report.rank:05d}.log").read_text()
                assert report.code == 0, f"rank {report.rank} ended with {report.code}:\n{log}"
            return [
                json.loads(Path(folder, f"result-{rank}.json").read_text()) for rank in range(ranks)
            ]

    def _wait(self, event: str, count: int, *, deadline_s: float) -> list[Report]:
        found: list[Report] = []
        end = time.monotonic() + deadline_s
        while len(found) < count:
            self._control.settimeout(max(0.01, end - time.monotonic()))
            data = self._control.recv(1 << 16)
            assert data, "the nursery ended"
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            reports = [msgspec.json.decode(line, type=Report) for line in lines]
            found += [r for r in reports if r.event == event]
            if event == "exit" and any(r.code for r in found):
                return sorted(found, key=lambda r: r.code == 0)
        return found

    def close(self) -> None:
        """End the nursery."""
        self._control.close()
        self._process.wait(timeout=20)


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
