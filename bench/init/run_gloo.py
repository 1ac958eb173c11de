"""Real ranks on gloo: init_process_group and every new_group, over TCPStore or the Redis stores.

    python bench/init/run_gloo.py --ranks 24 --reps 3

Ranks are forked, each makes all groups that it belongs to, in one global order, without a meeting a
group (what `engine.comm.mesh` does). One JSON line a run: seconds of the slowest rank.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from bench.init.groups import layout
from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.native_store import build, native_store
from engine.comm.store import RedisStore


def rank_main(args, rank, where, pipe):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=120)
    kind, place = where
    if kind == "tcp":
        store = dist.TCPStore("127.0.0.1", place, None, False, timeout=limit)
    else:
        opened = native_store if kind == "native" else RedisStore
        store = opened(place, prefix=f"g{os.getppid()}/", timeout_s=120)
    store.add("up", 1)  # line up, so that forking is not measured
    while store.add("up", 0) < args.ranks:
        time.sleep(0.005)
    start = time.perf_counter()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    world = time.perf_counter()
    for _, ranks in layout(args.ranks, args.tp, args.pp):
        if len(ranks) > 1 and rank in ranks:
            dist.new_group(ranks, use_local_synchronization=True)
    groups = time.perf_counter()
    value = torch.ones(1)
    dist.all_reduce(value)
    assert int(value) == args.ranks
    first = time.perf_counter()
    row = {"rank": rank, "init": world - start, "groups": groups - world, "first": first - groups}
    os.write(pipe, (json.dumps(row) + "\n").encode())
    store.add("down", 1)
    while store.add("down", 0) < args.ranks:
        time.sleep(0.02)
    os._exit(0)


def tcp_server():
    """A TCPStore in a process of its own; returns its port and pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        time.sleep(600)
        os._exit(0)
    return int(os.read(read, 16)), pid


def once(args, where):
    read, write = os.pipe()
    pids = []
    for rank in range(args.ranks):
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(args, rank, where, write)
            except BaseException as error:
                os.write(
                    write, (json.dumps({"rank": rank, "error": repr(error)[:300]}) + "\n").encode()
                )
            os._exit(1)
        pids.append(pid)
    os.close(write)
    with os.fdopen(read) as pipe:
        rows = [json.loads(line) for line in pipe]
    for pid in pids:
        os.waitpid(pid, 0)
    bad = [row for row in rows if "error" in row]
    if bad:
        sys.exit(f"failed: {bad[0]}")
    return {k: round(max(row[k] for row in rows), 3) for k in ("init", "groups", "first")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=24)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    build()
    for _ in range(args.reps):
        port, pid = tcp_server()
        try:
            show(args, "tcp", port)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        for kind in ("redis", "native"):
            with EmbeddedRedis(host="127.0.0.1", durable=False) as server:
                show(args, kind, server.url)


def show(args, kind, place):
    print(json.dumps({"store": kind, "ranks": args.ranks, **once(args, (kind, place))}), flush=True)


if __name__ == "__main__":
    main()
