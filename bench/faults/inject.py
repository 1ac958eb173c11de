"""The faults that come from outside the ranks: what is done, and what has to be said of it.

Everything here is real: signals, cables, control groups, a frozen file system, a second driver.
What lasts (a cut, a frozen store) has ended when `inject` returns.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.faults.cgroup import Group
from bench.faults.net import Network
from engine.comm.resp import Client, parse_url
from engine.job.drills import tear_checkpoint
from engine.job.keeper import read_join
from engine.processes import family_of

if TYPE_CHECKING:
    from bench.faults.campaign import Job

RANKS = 8
STORE_BYTES = 64 << 20
"""Size of the checkpoint store in batches whose faults hit it."""
_SLOW_STEPS, _SLOW_S, _SLOW_SHARE = 60, 150.0, 0.1
_STORE_S = 60.0
_AGAIN_S = 120.0
_OOM_S = 30.0
_OOM_BYTES = 1 << 16


class Struck(NamedTuple):
    """What was done, and what a driver that sees well says of it."""

    when: float
    """Seconds since 1970."""
    ranks: frozenset[int] = frozenset()
    node: str = ""
    """The rank or node to blame; neither: nobody."""
    evicts: str = ""
    """A node that has to be out of the job in the end."""
    kinds: tuple[str, ...] = ()
    """Kinds of incident that can be this fault; empty: any."""
    wrong: str = ""
    """What already went wrong while it was done."""
    measured: dict[str, float] = {}  # noqa: RUF012 - never changed


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    if pid > 1:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def kill_all(folder: Path) -> None:
    """End every process that names this folder on its command line, and all below it.

    Also those that write its checkpoints behind it, with the memory that they write from.
    """
    log = f'"log":"{folder}/'.encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:3] == [b"-m", b"engine.ckpt.flush"] and any(log in word for word in words[4:5]):
            kill(int(path.name), signal.SIGKILL)
            shutil.rmtree(words[3].decode(), ignore_errors=True)
        if str(folder).encode() in words and int(path.name) != os.getpid():
            for pid in family_of(int(path.name)):
                kill(pid, signal.SIGKILL)


def inject(job: "Job", net: Network, fault: str, rng: random.Random) -> Struck:
    """Do it."""
    rank = rng.randrange(RANKS)
    node = job.node_of(rank)
    time.sleep(rng.uniform(0.0, 0.5))
    hit = _Hit(job, net, rank, node)
    return _HOW[fault](hit)


class _Hit(NamedTuple):
    """Where a fault goes."""

    job: "Job"
    net: Network
    rank: int
    node: str

    @property
    def place(self) -> int:
        """The node's place in the network."""
        return int(self.node.partition(".")[0].rpartition("-")[2])

    def nobody(self, when: float, *, wrong: str = "", **measured: float) -> Struck:
        """A fault after which nothing may be restarted."""
        return Struck(when, wrong=wrong, measured=measured)

    def rank_is(self, when: float) -> Struck:
        """The rank is to blame."""
        return Struck(when, ranks=frozenset({self.rank}))


# -- ranks


def _signal_rank(number: int) -> Callable[[_Hit], Struck]:
    def do(hit: _Hit) -> Struck:
        now = time.time()
        kill(hit.job.rank_pid(hit.rank), number)
        return hit.rank_is(now)

    return do


def _two_ranks(hit: _Hit) -> Struck:
    other = (hit.rank + 3) % RANKS
    pids = [hit.job.rank_pid(hit.rank), hit.job.rank_pid(other)]
    now = time.time()
    for pid in pids:
        kill(pid, signal.SIGKILL)
    return Struck(now, ranks=frozenset({hit.rank, other}))


def _slow(hit: _Hit) -> Struck:
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


def _out_of_memory(hit: _Hit) -> Struck:
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


def _hang_in_init(hit: _Hit) -> Struck:
    """A rank of a new start is stopped before the ranks have met; another's death starts it."""
    other = (hit.rank + 1) % RANKS
    known = hit.job.rank_pid(hit.rank)
    kill(hit.job.rank_pid(other), signal.SIGKILL)
    end = time.monotonic() + _AGAIN_S
    while time.monotonic() < end:
        pid = hit.job.rank_pid(hit.rank)
        if pid and pid != known:
            now = time.time()
            kill(pid, signal.SIGSTOP)
            return Struck(now, ranks=frozenset({hit.rank}), kinds=("hang", "start"))
        time.sleep(0.005)
    return Struck(time.time(), ranks=frozenset({hit.rank}), wrong="no second start came")


def _log_flood(hit: _Hit) -> Struck:
    """256 MiB of unprintable bytes without an end of line, as fast as they go."""
    pid, now = hit.job.rank_pid(hit.rank), time.time()
    noise = bytes(range(128, 256)) * 8192
    with open(f"/proc/{pid}/fd/1", "ab", buffering=0) as log:
        for _ in range(256):
            log.write(noise)
    return hit.nobody(now)


# -- nodes


def _signal_node(number: int, *, whole: bool = True) -> Callable[[_Hit], Struck]:
    def do(hit: _Hit) -> Struck:
        family = hit.job.pids(hit.node)
        now = time.time()
        for pid in family if whole else family[:1]:
            kill(pid, number)
        return Struck(now, node=hit.node)

    return do


def _two_nodes(hit: _Hit) -> Struck:
    """One more than there are spares: the job waits for one that is repaired."""
    other = hit.job.node_of((hit.rank + 4) % RANKS)
    families = hit.job.pids(hit.node) + hit.job.pids(other)
    now = time.time()
    for pid in families:
        kill(pid, signal.SIGKILL)
    return Struck(now, node=f"{hit.node},{other}")


def _again(hit: _Hit) -> Struck:
    """Two deaths on one node within half an hour: it leaves though its check finds nothing."""
    view = hit.job.view
    on_node = next(n.ranks for n in view.nodes if n.node == hit.node) if view else (hit.rank,)
    kill(hit.job.rank_pid(on_node[0]), signal.SIGKILL)
    if not hit.job.wait_restart(_AGAIN_S):
        return Struck(time.time(), node=hit.node, wrong="no step after the first death")
    if hit.job.node_of(on_node[-1]) != hit.node:  # it had a death before this fault came
        return Struck(time.time(), node=hit.node, wrong="skip: the node left after the first death")
    now = time.time()
    kill(hit.job.rank_pid(on_node[-1]), signal.SIGKILL)
    return Struck(now, ranks=frozenset({on_node[-1]}), evicts=hit.node)


def _bad_node(hit: _Hit) -> Struck:
    """A node's /dev/shm is too small; a rank of another node dies, and all nodes are checked."""
    other = (hit.rank + 4) % RANKS
    executor = next(pid for pid in hit.job.pids(hit.node))
    subprocess.run(
        ["nsenter", "-t", str(executor), "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs",
         "/dev/shm"], check=True)  # fmt: skip
    now = time.time()
    kill(hit.job.rank_pid(other), signal.SIGKILL)
    return Struck(now, ranks=frozenset({other}), evicts=hit.node)


def _bad_spare(hit: _Hit) -> Struck:
    """The spare stands still when a node is lost: it must not get the ranks."""
    view = hit.job.view
    spare = next((n.node for n in view.nodes if not n.ranks and n.state == "ready"), "") if (
        view
    ) else ""  # fmt: skip
    still = hit.job.pids(spare)
    for pid in still:
        kill(pid, signal.SIGSTOP)
    family = hit.job.pids(hit.node)
    now = time.time()
    for pid in family:
        kill(pid, signal.SIGKILL)
    went_on = hit.job.wait_restart(_AGAIN_S)
    wrong = "" if went_on else "no new step while the spare stood still"
    for pid in still:
        kill(pid, signal.SIGCONT)
    return Struck(now, node=hit.node, wrong=wrong)


# -- network


def _cut(seconds: float, *, blames: bool) -> Callable[[_Hit], Struck]:
    def do(hit: _Hit) -> Struck:
        now = time.time()
        hit.net.cut(hit.place)
        time.sleep(seconds)
        hit.net.join(hit.place)
        return Struck(now, node=hit.node) if blames else hit.nobody(now)

    return do


def _slow_link(*, both: bool) -> Callable[[_Hit], Struck]:
    def do(hit: _Hit) -> Struck:
        now, before = time.time(), hit.job.step()
        hit.net.slow(hit.place, "20mbit", both=both)
        time.sleep(20.0 if both else 10.0)
        hit.net.fast(hit.place)
        return hit.nobody(now, steps_meanwhile=hit.job.step() - before)

    return do


# -- Redis and the driver


def _redis_kill(hit: _Hit) -> Struck:
    now = time.time()
    kill(hit.job.redis_pid(), signal.SIGKILL)
    return hit.nobody(now)


def _keeper_kill(hit: _Hit) -> Struck:
    """The owner of the job's Redis, which dies with it; another must take the data over."""
    now, place = time.time(), hit.job.folder / "join.json"
    keeper = read_join(place).keeper_pid
    kill(keeper, signal.SIGKILL)
    end = time.monotonic() + _AGAIN_S
    while time.monotonic() < end:
        if place.exists() and read_join(place).keeper_pid != keeper:
            return hit.nobody(now)
        time.sleep(0.1)
    return hit.nobody(now)._replace(wrong="no other keeper came")


def _redis_stop(hit: _Hit) -> Struck:
    pid, now, before = hit.job.redis_pid(), time.time(), hit.job.step()
    kill(pid, signal.SIGSTOP)
    time.sleep(20.0)
    steps = hit.job.step() - before
    kill(pid, signal.SIGCONT)
    return hit.nobody(now, steps_meanwhile=steps)


def _redis_partition(hit: _Hit) -> Struck:
    now, before = time.time(), hit.job.step()
    hit.net.deaf(hit.place)
    time.sleep(20.0)  # within the grace that a node has whose ranks still make steps
    hit.net.hears(hit.place)
    return hit.nobody(now, steps_meanwhile=hit.job.step() - before)


def _driver_kill(hit: _Hit) -> Struck:
    now = time.time()
    hit.job.driver.kill()
    hit.job.driver.wait()
    hit.job.start()
    return hit.nobody(now)


def _two_drivers(hit: _Hit) -> Struck:
    """A second driver on the same job: it has to end, and change nothing."""
    now = time.time()
    try:
        second = subprocess.run(
            [sys.executable, "-m", "bench.faults.drive", str(hit.job.folder), "0"],
            capture_output=True, timeout=60, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        wrong = "" if second.returncode else "the second driver says that all went well"
    except subprocess.TimeoutExpired:
        wrong = "the second driver did not end within a minute"
    if hit.job.driver.poll() is not None:
        wrong = "the first driver ended"
    return hit.nobody(now, wrong=wrong)


def _rank_and_driver(hit: _Hit) -> Struck:
    """A rank dies while nobody is in charge; the next driver has to mend it."""
    pid = hit.job.rank_pid(hit.rank)
    hit.job.driver.kill()
    hit.job.driver.wait()
    now = time.time()
    kill(pid, signal.SIGKILL)
    hit.job.start()
    return hit.rank_is(now)


def _node_and_redis(hit: _Hit) -> Struck:
    """A node dies while Redis does not answer for some seconds."""
    redis, family = hit.job.redis_pid(), hit.job.pids(hit.node)
    kill(redis, signal.SIGSTOP)
    time.sleep(1.0)
    now = time.time()
    for pid in family:
        kill(pid, signal.SIGKILL)
    time.sleep(3.0)
    kill(redis, signal.SIGCONT)
    return Struck(now, node=hit.node)


def _clock(hit: _Hit) -> Struck:
    join = read_join(hit.job.folder / "join.json")
    client = Client(parse_url(join.redis))
    token = client.call(("GET", f"{join.job}:token"))[0]
    assert isinstance(token, bytes), "a driver is in charge"
    text = json.dumps({"id": "clock", "token": int(token), "op": "clock", "value": 3600.0})
    now = time.time()
    client.call(("RPUSH", f"{join.job}:orders:{hit.node}", text))
    client.close()
    return hit.nobody(now)


# -- storage


def _torn(hit: _Hit) -> Struck:
    pid = hit.job.rank_pid(hit.rank)
    wrong = "" if tear_checkpoint(hit.job.folder / "ckpt") else "skip: no checkpoint to tear"
    now = time.time()
    kill(pid, signal.SIGKILL)
    return hit.rank_is(now)._replace(wrong=wrong)


def _disk_full(hit: _Hit) -> Struck:
    fill, now, before = hit.job.folder / "ckpt" / "fill", time.time(), hit.job.step()
    with fill.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * (1 << 20))
                file.flush()
        except OSError:
            pass
    hit.job.wait(before + 10, 60.0)  # two checkpoints are due meanwhile
    fill.unlink()
    return hit.nobody(now, steps_meanwhile=hit.job.step() - before)


def _storage(frozen_s: float, free_s: float) -> Callable[[_Hit], Struck]:
    """The store's file system answers no write for a minute, or only now and then."""

    def do(hit: _Hit) -> Struck:
        store = str(hit.job.folder / "ckpt")
        now, before = time.time(), hit.job.step()
        end = time.monotonic() + _STORE_S
        while time.monotonic() < end:
            subprocess.run(["fsfreeze", "-f", store], check=True)
            try:
                time.sleep(frozen_s)
                steps = hit.job.step() - before
            finally:
                subprocess.run(["fsfreeze", "-u", store], check=True)
            time.sleep(free_s)
        wrong = "" if steps > 0 else "no step was made meanwhile"
        return hit.nobody(now, wrong=wrong, steps_meanwhile=steps)

    return do


class Store:
    """A small disk of its own at the job's checkpoints; a context manager that takes it away."""

    def __init__(self, folder: Path) -> None:
        self._at, self._image = folder / "ckpt", folder / "store.img"

    def __enter__(self) -> "Store":
        with self._image.open("wb") as file:
            file.truncate(STORE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self._at)], check=True)
        (self._at / "lost+found").rmdir()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["fsfreeze", "-u", str(self._at)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(self._at)], check=False)
        self._image.unlink(missing_ok=True)


_HOW: dict[str, Callable[[_Hit], Struck]] = {
    "kill": _signal_rank(signal.SIGKILL), "stop": _signal_rank(signal.SIGSTOP),
    "two-at-once": _two_ranks, "slow": _slow, "oom-kill": _out_of_memory,
    "hang-start": _hang_in_init, "log-flood": _log_flood,
    "node-kill": _signal_node(signal.SIGKILL), "node-stop": _signal_node(signal.SIGSTOP),
    "executor-kill": _signal_node(signal.SIGKILL, whole=False), "two-nodes": _two_nodes,
    "kill-again": _again, "bad-node": _bad_node, "bad-spare": _bad_spare,
    "link-cut": _cut(12.0, blames=True), "link-flap": _cut(3.0, blames=False),
    "link-slow": _slow_link(both=False), "link-slow-both": _slow_link(both=True),
    "redis-kill": _redis_kill, "keeper-kill": _keeper_kill, "redis-stop": _redis_stop,
    "redis-partition": _redis_partition,
    "driver-kill": _driver_kill, "two-drivers": _two_drivers, "rank-and-driver": _rank_and_driver,
    "node-and-redis": _node_and_redis, "clock": _clock, "torn-checkpoint": _torn,
    "disk-full": _disk_full, "storage-hang": _storage(60.0, 0.0),
    "storage-slow": _storage(0.9, 0.1),
}  # fmt: skip
OUTSIDE = frozenset(_HOW)
ON_STORE = frozenset({"disk-full", "storage-hang", "storage-slow"})
