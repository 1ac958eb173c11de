"""Faults of ranks: signals, control groups, floods."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from bench.faults.cgroup import Group
from bench.faults.hit import AGAIN_S, RANKS, Hit, Struck, kill
from bench.faults.net import HOST
from engine.comm.resp import Client, parse_url
from engine.job.keeper import read_join
from engine.train.task import RankTask

if TYPE_CHECKING:
    from bench.faults.campaign import Job

_SLOW_STEPS, _SLOW_S, _SLOW_SHARE = 60, 150.0, 0.1
_OOM_S = 30.0
_OOM_BYTES = 1 << 16
_STALE_STEPS, _STALE_S = 40, 30.0


def _signal_rank(number: int) -> Callable[[Hit], Struck]:
    def do(hit: Hit) -> Struck:
        now = time.time()
        kill(hit.job.rank_pid(hit.rank), number)
        return hit.rank_is(now)

    return do


def _two_ranks(hit: Hit) -> Struck:
    other = (hit.rank + 3) % RANKS
    pids = [hit.job.rank_pid(hit.rank), hit.job.rank_pid(other)]
    now = time.time()
    for pid in pids:
        kill(pid, signal.SIGKILL)
    return Struck(now, ranks=frozenset({hit.rank, other}))


def _slow(hit: Hit) -> Struck:
    """A tenth of a core; half of one is no fault where eight ranks share two cores."""
    pid, until = hit.job.rank_pid(hit.rank), hit.job.step() + _SLOW_STEPS
    now, end = time.time(), time.monotonic() + _SLOW_S
    with Group("cpu", "msctl-slow") as group:
        group.share(_SLOW_SHARE)
        group.take(pid)
        while time.monotonic() < end and hit.job.step() < until and not _is_told(hit.job, now):
            time.sleep(0.2)
    return Struck(now, ranks=frozenset({hit.rank}), kinds=("slow",))


def _is_told(job: "Job", since: float) -> bool:
    return any(r.incident.kind == "slow" and r.incident.time_s > since for r in job.recoveries())


def _out_of_memory(hit: Hit) -> Struck:
    """The kernel's own kill: hardly any new memory, and the next step asks for some."""
    pid = hit.job.rank_pid(hit.rank)
    with Group("memory", "msctl-oom") as group:
        group.memory(_OOM_BYTES)
        now, end = time.time(), time.monotonic() + _OOM_S
        group.take(pid)
        while time.monotonic() < end and not group.killed:
            time.sleep(0.01)
        wrong = "" if group.killed else "skip: the kernel killed nobody"
        late = time.time() - now
    # it asked for memory when it wanted to: the fault began when it was killed
    return Struck(now + late, ranks=frozenset({hit.rank}), wrong=wrong)


def _hang_in_init(hit: Hit) -> Struck:
    """A rank of a new start is stopped before the ranks have met; another's death starts it."""
    other = (hit.rank + 1) % RANKS
    known = hit.job.rank_pid(hit.rank)
    kill(hit.job.rank_pid(other), signal.SIGKILL)
    end = time.monotonic() + AGAIN_S
    while time.monotonic() < end:
        pid = hit.job.rank_pid(hit.rank)
        if pid and pid != known:
            now = time.time()
            kill(pid, signal.SIGSTOP)
            return Struck(now, ranks=frozenset({hit.rank}), kinds=("hang", "start"))
        time.sleep(0.005)
    return Struck(time.time(), ranks=frozenset({hit.rank}), wrong="no second start came")


def _stale(hit: Hit) -> Struck:
    """A rank dies; a process of the start before then wants to take its place among the ranks."""
    job, view = hit.job, hit.job.view
    assert view is not None, "a driver is in charge"
    known = len(job.recoveries())
    names = tuple(node.node for node in sorted(view.nodes, key=lambda n: n.ranks) if node.ranks)
    join = read_join(job.folder / "join.json")
    client = Client(parse_url(join.redis))
    token = client.call(("GET", f"{join.job}:token"))[0]
    client.close()
    assert isinstance(token, bytes), "a driver is in charge"
    task = RankTask(
        folder=str(job.folder), world=RANKS, host=HOST, port=0, node=hit.node,
        store_url=join.redis, store_prefix=f"{job.folder.name}:{int(token)}.{view.attempt}:",
        nodes=names, attempt=view.attempt,
    )  # fmt: skip
    now = time.time()
    kill(job.rank_pid(hit.rank), signal.SIGKILL)
    with (job.folder / "log" / "stale.log").open("ab") as log:
        late = subprocess.Popen(
            [*hit.net.words(hit.node), sys.executable, "-m", "bench.faults.stale", str(hit.rank)],
            stdin=subprocess.PIPE, stdout=log, stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert late.stdin is not None, "a pipe was asked for"
    late.stdin.write(msgspec.json.encode(task))
    late.stdin.close()
    wrong = "" if job.wait_restart(AGAIN_S) else "no step after the death"
    at = job.step()
    job.wait(at + _STALE_STEPS, _STALE_S)
    late.kill()  # it may have given up: nobody of its start is there any more
    late.wait()
    if len(job.recoveries()) > known + 1:
        wrong = "it was disturbed by the late rank"
    return hit.rank_is(now)._replace(wrong=wrong)


def _log_flood(hit: Hit) -> Struck:
    """256 MiB of unprintable bytes without an end of line, as fast as they go."""
    pid, now = hit.job.rank_pid(hit.rank), time.time()
    noise = bytes(range(128, 256)) * 8192
    with open(f"/proc/{pid}/fd/1", "ab", buffering=0) as log:
        for _ in range(256):
            log.write(noise)
    return hit.nobody(now)


HOW: dict[str, Callable[[Hit], Struck]] = {
    "kill": _signal_rank(signal.SIGKILL), "stop": _signal_rank(signal.SIGSTOP),
    "two-at-once": _two_ranks, "slow": _slow, "oom-kill": _out_of_memory,
    "hang-start": _hang_in_init, "log-flood": _log_flood, "stale-rank": _stale,
}  # fmt: skip
