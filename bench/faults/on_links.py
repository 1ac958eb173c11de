"""Faults of links, of the job's Redis and of its driver."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from bench.faults.hit import AGAIN_S, Hit, Struck, kill
from engine.comm.resp import Client, parse_url
from engine.job.keeper import read_join


def _cut(seconds: float, *, blames: bool) -> Callable[[Hit], Struck]:
    def do(hit: Hit) -> Struck:
        now = time.time()
        hit.net.cut(hit.place)
        time.sleep(seconds)
        hit.net.join(hit.place)
        return Struck(now, node=hit.node) if blames else hit.nobody(now)

    return do


def _slow_link(*, both: bool) -> Callable[[Hit], Struck]:
    def do(hit: Hit) -> Struck:
        now, before = time.time(), hit.job.step()
        hit.net.slow(hit.place, "20mbit", both=both)
        time.sleep(20.0 if both else 10.0)
        hit.net.fast(hit.place)
        return hit.nobody(now, steps_meanwhile=hit.job.step() - before)

    return do


# -- Redis and the driver


def _redis_kill(hit: Hit) -> Struck:
    now = time.time()
    kill(hit.job.redis_pid(), signal.SIGKILL)
    return hit.nobody(now)


def _keeper_kill(hit: Hit) -> Struck:
    """The owner of the job's Redis, which dies with it; another must take the data over."""
    now, place = time.time(), hit.job.folder / "join.json"
    keeper = read_join(place).keeper_pid
    kill(keeper, signal.SIGKILL)
    end = time.monotonic() + AGAIN_S
    while time.monotonic() < end:
        if place.exists() and read_join(place).keeper_pid != keeper:
            return hit.nobody(now)
        time.sleep(0.1)
    return hit.nobody(now)._replace(wrong="no other keeper came")


def _redis_stop(hit: Hit) -> Struck:
    pid, now, before = hit.job.redis_pid(), time.time(), hit.job.step()
    kill(pid, signal.SIGSTOP)
    time.sleep(20.0)
    steps = hit.job.step() - before
    kill(pid, signal.SIGCONT)
    return hit.nobody(now, steps_meanwhile=steps)


def _redis_partition(hit: Hit) -> Struck:
    now, before = time.time(), hit.job.step()
    hit.net.deaf(hit.place)
    time.sleep(20.0)  # within the grace that a node has whose ranks still make steps
    hit.net.hears(hit.place)
    return hit.nobody(now, steps_meanwhile=hit.job.step() - before)


def _driver_kill(hit: Hit) -> Struck:
    now = time.time()
    hit.job.driver.kill()
    hit.job.driver.wait()
    hit.job.start()
    return hit.nobody(now)


def _two_drivers(hit: Hit) -> Struck:
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


def _rank_and_driver(hit: Hit) -> Struck:
    """A rank dies while nobody is in charge; the next driver has to mend it."""
    pid = hit.job.rank_pid(hit.rank)
    hit.job.driver.kill()
    hit.job.driver.wait()
    now = time.time()
    kill(pid, signal.SIGKILL)
    hit.job.start()
    return hit.rank_is(now)


def _node_and_redis(hit: Hit) -> Struck:
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


def _clock(hit: Hit) -> Struck:
    join = read_join(hit.job.folder / "join.json")
    client = Client(parse_url(join.redis))
    token = client.call(("GET", f"{join.job}:token"))[0]
    assert isinstance(token, bytes), "a driver is in charge"
    text = json.dumps({"id": "clock", "token": int(token), "op": "clock", "value": 3600.0})
    now = time.time()
    client.call(("RPUSH", f"{join.job}:orders:{hit.node}", text))
    client.close()
    return hit.nobody(now)


HOW: dict[str, Callable[[Hit], Struck]] = {
    "link-cut": _cut(12.0, blames=True), "link-flap": _cut(3.0, blames=False),
    "link-slow": _slow_link(both=False), "link-slow-both": _slow_link(both=True),
    "redis-kill": _redis_kill, "keeper-kill": _keeper_kill, "redis-stop": _redis_stop,
    "redis-partition": _redis_partition, "driver-kill": _driver_kill,
    "two-drivers": _two_drivers, "rank-and-driver": _rank_and_driver,
    "node-and-redis": _node_and_redis, "clock": _clock,
}  # fmt: skip
