"""Find a slow, a lossy and a dead node among 16 network namespaces, with real gloo traffic.

    python bench/health/namespaces.py --runs 20             one of each kind, random places
    python bench/health/namespaces.py --runs 20 --healthy   nobody may be named
    python bench/health/namespaces.py --runs 5 --at-size    a fault that only many nodes show

Needs root. Slow is tc tbf, lossy is random loss by iptables, dead is a link that goes down once the
agent has come. At size: one node refuses connections beyond the fifth, which no pair sees; halving
must end at one group, with that node in it. One JSON line a run: who was made sick, who was named,
seconds.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client, parse_url
from engine.health.agent import Hello, serve
from engine.health.fleet import Fleet, Plan, check_fleet
from engine.health.launch import new_run

BRIDGE, LEADER = "brcheck", "10.79.0.254"
CLONE_NEWNET = 0x40000000


def sh(command):
    subprocess.run(command.split(), check=True, capture_output=True)


def set_up(count):
    sh(f"ip link add {BRIDGE} type bridge")
    sh(f"ip addr add {LEADER}/24 dev {BRIDGE}")
    sh(f"ip link set {BRIDGE} up")
    for i in range(count):
        sh(f"ip netns add chk{i}")
        sh(f"ip link add vchk{i} type veth peer name veth0 netns chk{i}")
        sh(f"ip link set vchk{i} master {BRIDGE} up")
        sh(f"ip -n chk{i} addr add 10.79.0.{i + 1}/24 dev veth0")
        sh(f"ip -n chk{i} link set veth0 up")
        sh(f"ip -n chk{i} link set lo up")


def tear_down(count):
    for i in range(count):
        subprocess.run(["ip", "link", "del", f"vchk{i}"], capture_output=True)
        subprocess.run(["ip", "netns", "del", f"chk{i}"], capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


def make_sick(slow, lossy):
    shape = "tc qdisc add dev veth0 root tbf rate 20mbit burst 64kb latency 400ms"
    sh(f"ip netns exec chk{slow} {shape}")
    for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
        rule = f"iptables -A {chain} {side} veth0 -p tcp -m statistic --mode random"
        sh(f"ip netns exec chk{lossy} {rule} --probability 0.2 -j DROP")


def make_well(slow, lossy, dead):
    sh(f"ip netns exec chk{slow} tc qdisc del dev veth0 root")
    sh(f"ip netns exec chk{lossy} iptables -F")
    sh(f"ip link set vchk{dead} up")


def few_connections(index, on):
    """The node refuses what goes beyond five connections to other nodes, whoever opens them."""
    for chain, side, other in (("INPUT", "-i", "! -s"), ("OUTPUT", "-o", "! -d")):
        rule = f"{side} veth0 -p tcp --syn {other} {LEADER} -m connlimit --connlimit-above 5"
        verb = "-A" if on else "-D"
        way = f"{chain} {rule} --connlimit-mask 0 -j REJECT --reject-with tcp-reset"
        sh(f"ip netns exec chk{index} iptables {verb} {way}")


def agent(index, hello):
    """Fork an agent that lives in a namespace."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with open(f"/var/run/netns/chk{index}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["GLOO_SOCKET_IFNAME"] = "veth0"
        serve(hello, f"n{index:02d}", os.environ)
    except BaseException as error:
        sys.stderr.write(f"agent {index}: {error!r}\n")
    os._exit(0)


def checked(count, hurt=None, bisect=False):
    """Agents in all namespaces, then the fleet's check; (what it found, seconds)."""
    with EmbeddedRedis(host=LEADER, durable=False) as server:
        hello = Hello(redis=server.url, run=new_run())
        pids = [agent(i, hello) for i in range(count)]
        nodes = [f"n{i:02d}" for i in range(count)]
        try:
            fleet = Fleet(Client(parse_url(server.url)), hello.run, nodes)
            fleet.gather(30)
            if hurt is not None:
                hurt()
            start = time.monotonic()
            plan = Plan(
                only=("host.shm",), check_s=10, timeout_s=4, size_bytes=2 << 20, slow_share=0.2,
                bisect=bisect,
            )  # fmt: skip
            return check_fleet(fleet, nodes, plan), time.monotonic() - start
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def at_size(count, rng):
    """One run of `--at-size`."""
    index = rng.randrange(count)
    few_connections(index, on=True)
    try:
        found, seconds = checked(count, bisect=True)
    finally:
        few_connections(index, on=False)
    groups = [r.target.split() for r in found.group if r.check == "group.bisect"]
    return {
        "sick": [f"n{index:02d}"], "named": list(found.unfit), "groups": groups,
        "right": len(groups) == 1 and f"n{index:02d}" in groups[0] and len(groups[0]) > 2,
        "rounds": found.rounds, "seconds": round(seconds, 1),
    }  # fmt: skip


def once(count, healthy, rng):
    slow, lossy, dead = rng.sample(range(count), 3)

    def hurt():
        make_sick(slow, lossy)
        sh(f"ip link set vchk{dead} down")

    try:
        found, seconds = checked(count, hurt=None if healthy else hurt)
    finally:
        if not healthy:
            make_well(slow, lossy, dead)
    sick = [] if healthy else sorted(f"n{i:02d}" for i in (slow, lossy, dead))
    return {
        "sick": sick, "slow": f"n{slow:02d}", "lossy": f"n{lossy:02d}", "dead": f"n{dead:02d}",
        "named": list(found.unfit), "right": list(found.unfit) == sick, "rounds": found.rounds,
        "seconds": round(seconds, 1),
        "other": [f"{r.check} {r.target} {r.message}" for r in found.group if r.status != "ok"][:6],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--at-size", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    import torch

    import engine.comm.scratch
    import engine.comm.store
    import engine.health.collective  # noqa: F401 - before the forks, so that agents start at once

    torch.set_num_threads(1)
    tear_down(args.nodes)
    set_up(args.nodes)
    rng = random.Random(args.seed)
    try:
        for _ in range(args.runs):
            at = args.at_size
            found = at_size(args.nodes, rng) if at else once(args.nodes, args.healthy, rng)
            print(json.dumps(found), flush=True)
    finally:
        tear_down(args.nodes)


if __name__ == "__main__":
    main()
