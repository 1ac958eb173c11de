"""Ranks start and step while their Redis is killed, frozen or cut off; say if the job goes on.

    python bench/init/chaos.py                     all scenarios, about two minutes
    python bench/init/chaos.py --only partition    needs root: one rank lives in a network namespace

Eight real gloo ranks meet at a private Redis, make the groups of a 3D layout and add numbers 20
times a second; a thread of each rank counts beats in the Redis meanwhile. One JSON line a scenario.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

import torch

from engine.comm.collectives import barrier
from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.mesh import build_mesh
from engine.comm.store import RedisStore
from engine.comm.world import Rendezvous, start_world
from engine.health.init import layout_of

RANKS, LATE = 8, 5
CLONE_NEWNET = 0x40000000
BRIDGE, HOST, SPACE, THERE = "brchaos", "10.78.0.1", "chaos0", "10.78.0.2"


def sh(command, check=True):
    subprocess.run(command.split(), check=check, capture_output=True)


def rank_main(rank, url, steps, late_s, pipe):
    """Meet, make groups, step; report the longest gap between steps and the beats at the end."""
    torch.set_num_threads(1)
    if rank == LATE:
        time.sleep(late_s)
    begin = time.perf_counter()
    meet = Rendezvous("", 0, store_url=url, prefix="chaos/")
    start_world(rank, RANKS, meet, backend="gloo", timeout_s=60)
    mesh = build_mesh(layout_of(RANKS), rank, backend="gloo", timeout_s=60)
    started = time.perf_counter() - begin
    beats, stop = [], threading.Event()
    thread = threading.Thread(target=beat, args=(url, beats, stop), daemon=True)
    thread.start()
    gaps, last = [], time.perf_counter()
    for _ in range(steps):
        barrier(mesh.world)
        for group in (mesh.tp, mesh.dp_reduce):
            barrier(group)
        time.sleep(0.05)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    seen, deadline = len(beats), time.monotonic() + 30
    while len(beats) <= seen and time.monotonic() < deadline:
        time.sleep(0.05)  # the Redis is reached again
    stop.set()
    barrier(mesh.world)
    row = {"start_s": started, "gap_s": max(gaps, default=0.0), "beats": len(beats),
           "back": len(beats) > seen}  # fmt: skip
    os.write(pipe, (json.dumps(row) + "\n").encode())


def beat(url, beats, stop):
    store = RedisStore(url, prefix="chaos/", timeout_s=60)
    while not stop.wait(0.1):
        beats.append(store.add("beats", 1))


def run(name, inject, *, steps, late_s=0.0, space=False, server):
    read, write = os.pipe()
    pids = [fork(rank, server.url, steps, late_s, write, space) for rank in range(RANKS)]
    os.close(write)
    start = time.monotonic()
    thread = threading.Thread(target=inject, args=(server,))
    thread.start()
    with os.fdopen(read) as pipe:
        rows = [json.loads(line) for line in pipe]
    thread.join()
    for pid in pids:
        os.waitpid(pid, 0)
    errors = [row["error"] for row in rows if "error" in row]
    good = [row for row in rows if "error" not in row]
    print(json.dumps({
        "scenario": name, "goes_on": len(good) == RANKS and all(r["back"] for r in good),
        "start_s": round(max((r["start_s"] for r in good), default=0.0), 2),
        "longest_gap_s": round(max((r["gap_s"] for r in good), default=0.0), 2),
        "wall_s": round(time.monotonic() - start, 1), "errors": errors[:2],
    }), flush=True)  # fmt: skip


def fork(rank, url, steps, late_s, pipe, space):
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if space:
            os.environ["GLOO_SOCKET_IFNAME"] = "veth0" if rank == LATE else BRIDGE
        if space and rank == LATE:
            with open(f"/var/run/netns/{SPACE}") as file:
                ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET)
        rank_main(rank, url, steps, late_s, pipe)
    except BaseException as error:
        os.write(pipe, (json.dumps({"error": repr(error)[:300]}) + "\n").encode())
    os._exit(0)


def kill(server, *, after_s, down_s):
    time.sleep(after_s)
    os.kill(server.pid, signal.SIGKILL)
    while server.is_alive:
        time.sleep(0.005)
    time.sleep(down_s)
    server.restart()


def freeze(server, *, after_s, for_s):
    time.sleep(after_s)
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(for_s)
    os.kill(server.pid, signal.SIGCONT)


def cut(server, *, after_s, for_s):
    """Drop what one rank's namespace sends to the Redis; its gloo traffic passes."""
    port = server.url.rsplit(":", 1)[1].split("/")[0]
    rule = f"ip netns exec {SPACE} iptables -{{}} OUTPUT -p tcp --dport {port} -j DROP"
    time.sleep(after_s)
    sh(rule.format("A"))
    time.sleep(for_s)
    sh(rule.format("D"))


SCENARIOS = {
    "no fault": (lambda s: None, {"steps": 60}),
    "killed in rendezvous": (
        lambda s: kill(s, after_s=1.0, down_s=1.0), {"steps": 20, "late_s": 3.0}),
    "killed in training": (lambda s: kill(s, after_s=2.5, down_s=2.0), {"steps": 120}),
    "frozen 20 s in rendezvous": (
        lambda s: freeze(s, after_s=1.0, for_s=20.0), {"steps": 20, "late_s": 2.0}),
    "frozen 20 s in training": (lambda s: freeze(s, after_s=2.5, for_s=20.0), {"steps": 500}),
    "partition of one node in rendezvous": (
        lambda s: cut(s, after_s=0.0, for_s=8.0), {"steps": 20, "late_s": 0.5, "space": True}),
    "partition of one node in training": (
        lambda s: cut(s, after_s=2.5, for_s=10.0), {"steps": 300, "space": True}),
}  # fmt: skip


def set_up():
    sh(f"ip link add {BRIDGE} type bridge")
    sh(f"ip addr add {HOST}/24 dev {BRIDGE}")
    sh(f"ip link set {BRIDGE} up")
    sh(f"ip netns add {SPACE}")
    sh(f"ip link add vchaos type veth peer name veth0 netns {SPACE}")
    sh(f"ip link set vchaos master {BRIDGE} up")
    sh(f"ip -n {SPACE} addr add {THERE}/24 dev veth0")
    sh(f"ip -n {SPACE} link set veth0 up")


def tear_down():
    for command in ("ip link del vchaos", f"ip netns del {SPACE}", f"ip link del {BRIDGE}"):
        sh(command, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="scenarios whose name has this text")
    only = parser.parse_args().only
    for name, (inject, how) in SCENARIOS.items():
        if only not in name:
            continue
        if how.get("space") and os.geteuid() != 0:
            sys.stderr.write(f"{name}: skipped, needs root\n")
            continue
        tear_down()
        if how.get("space"):
            set_up()
        host = HOST if how.get("space") else "127.0.0.1"
        with EmbeddedRedis(host=host) as server:
            run(name, inject, server=server, **how)
        tear_down()


if __name__ == "__main__":
    main()
