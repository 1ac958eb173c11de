#!/usr/bin/env python3
"""Compare checkpoint systems side by side on CPU tensors and gloo.

One JSON line per (system, world size, layout). See README.md in this folder
for the meaning of every field and for how to add a system.
"""

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from bench_state import State, fsync_tree, proc_io, tree_size

HERE = os.path.dirname(os.path.abspath(__file__))


def emit(**kw):
    sys.stdout.write("@@" + json.dumps(kw) + "\n")
    sys.stdout.flush()


def load_system(name):
    if ":" in name:  # a plug-in: file-or-module:Class
        mod, cls = name.rsplit(":", 1)
        if mod.endswith(".py"):  # by its own name, so that spawned helpers can import it too
            sys.path.insert(0, os.path.dirname(os.path.abspath(mod)))
            mod = os.path.basename(mod)[:-3]
        m = importlib.import_module(mod)
        return getattr(m, cls)
    sys.path.insert(0, HERE)
    import systems

    return systems.ALL[name]


# -------------------------------------------------------------------- worker
def worker(a):
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = State(a.gib, rank, world, a.layout)
    system = load_system(a.system)(state, a.dir)

    def all_max(x):
        t = torch.tensor([float(x)], dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return t.item()

    def all_min(x):
        return -all_max(-x)

    def all_sum(x):
        t = torch.tensor([float(x)], dtype=torch.float64)
        dist.all_reduce(t)
        return t.item()

    work = torch.randn(640, 640)

    def train_step():
        t0 = time.perf_counter()
        torch.mm(work, work)
        return time.perf_counter() - t0

    if a.phase == "save":
        state.fill(0)
        base = [train_step() for _ in range(30)]
        base = statistics.median(base)
        dist.barrier()
        if rank == 0:
            emit(ev="ready", nbytes=state.nbytes_global, version=system.version())
        saves = []
        last = None
        for i in range(a.saves):
            path = os.path.join(a.dir, f"step-{i:08d}")
            saved_step = state.step
            dist.barrier()
            if rank == 0:
                emit(ev="save", i=i)
            w0 = proc_io()["wchar"]
            c0, t0 = time.process_time(), time.perf_counter()
            system.save(state, path)
            stall, stall_cpu = time.perf_counter() - t0, time.process_time() - c0
            state.advance()  # the next optimizer step
            slow = n = 0
            while True:
                done = bool(system.done())
                if all_min(done):
                    break
                slow += max(0.0, train_step() - base)
                n += 1
                if time.perf_counter() - t0 > a.limit:
                    raise TimeoutError("save did not finish")
            done_s = time.perf_counter() - t0
            if a.snapshot and i == a.saves - 1 and rank == 0:
                shutil.copyfile(*a.snapshot.split("::"))  # the disk as a power cut would leave it
            dist.barrier()
            extra = fsync_tree(path) if rank == 0 else 0.0
            rec = dict(
                stall=all_max(stall),
                stall_cpu=all_max(stall_cpu),
                done=all_max(done_s),
                fsync_extra=all_max(extra),
                slow=all_max(slow),
                steps=n,
                wchar=all_sum(proc_io()["wchar"] - w0),
            )
            rec["durable"] = rec["done"] + rec["fsync_extra"]
            if rank == 0:
                rec["files"], rec["bytes"] = tree_size(path)
            saves.append(rec)
            if rank == 0 and last:
                shutil.rmtree(last, ignore_errors=True)
            last = path
        system.close()
        if rank == 0:
            emit(ev="saved", saves=saves, step=saved_step, path=os.path.basename(last), step_s=base)
        dist.barrier()
    else:
        state.fill(-5000)  # wrong on purpose
        path = os.path.join(a.dir, a.name)
        dist.barrier()
        r0 = proc_io()
        t0 = time.perf_counter()
        system.load(state, path)
        sec = all_max(time.perf_counter() - t0)
        r1 = proc_io()
        bad = state.wrong(a.step)
        nbad = all_sum(len(bad))
        rec = dict(
            sec=sec,
            rchar=all_sum(r1["rchar"] - r0["rchar"]),
            disk=all_sum(r1["read_bytes"] - r0["read_bytes"]),
            bad=int(nbad),
        )
        system.close()
        if rank == 0:
            emit(ev="loaded", first_bad=bad[:2], **rec)
        dist.barrier()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # background helpers must not hold us


# ------------------------------------------------------------------ launcher
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def session_pss(sids):
    """Proportional set size of every process in the given sessions."""
    total = 0
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            if int(fields[3]) not in sids:
                continue
            with open(f"/proc/{pid}/smaps_rollup") as f:
                for line in f:
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
                        break
        except (OSError, IndexError, ValueError):
            continue
    return total


def kill_sessions(sids):
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/stat") as f:
                sid = int(f.read().rsplit(")", 1)[1].split()[3])
            if sid in sids:
                os.kill(int(pid), signal.SIGKILL)
        except (OSError, IndexError, ValueError):
            continue


def run_phase(a, system, world, layout, phase, workdir, limit, extra=()):
    port = free_port()
    procs, events = [], []
    peak = {"ready": 0, "max": 0}
    stop = threading.Event()
    log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - lives as long as the phase
    for r in range(world):
        env = dict(
            os.environ,
            RANK=str(r),
            LOCAL_RANK=str(r),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
            PYTHONWARNINGS="ignore",
            PYTHONPATH=HERE + os.pathsep + os.environ.get("PYTHONPATH", ""),
        )
        cmd = [
            sys.executable,
            os.path.abspath(__file__),
            "--worker",
            "--system",
            system,
            "--phase",
            phase,
            "--gib",
            str(a.gib),
            "--layout",
            layout,
            "--dir",
            workdir,
            "--saves",
            str(a.saves),
            "--limit",
            str(limit),
            *extra,
        ]
        procs.append(
            subprocess.Popen(
                cmd, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        )
    sids = {p.pid for p in procs}

    def reader(p):
        for line in p.stdout:
            if line.startswith("@@"):
                ev = json.loads(line[2:])
                events.append(ev)
                if ev["ev"] == "ready":
                    peak["ready"] = session_pss(sids)
            elif a.verbose:
                sys.stderr.write(line)

    def sampler():
        while not stop.wait(0.25):
            if peak["ready"]:
                peak["max"] = max(peak["max"], session_pss(sids))

    ts = [threading.Thread(target=reader, args=(p,), daemon=True) for p in procs]
    ts.append(threading.Thread(target=sampler, daemon=True))
    for t in ts:
        t.start()
    deadline, rc = time.time() + limit, 0
    try:
        while True:
            codes = [p.poll() for p in procs]
            if any(c not in (None, 0) for c in codes):
                rc = next(c for c in codes if c not in (None, 0))
                break
            if all(c == 0 for c in codes):
                break
            if time.time() > deadline:
                rc = "timeout"
                break
            time.sleep(0.05)
    finally:
        stop.set()
        time.sleep(0.1)
        kill_sessions(sids)
        for p in procs:
            p.wait()
        for t in ts[:-1]:
            t.join(5)
    log.seek(0)
    text = log.read()
    if a.verbose:
        sys.stderr.write(text)
    err = None
    if rc:
        lines = [x for x in text.strip().splitlines() if x.strip()]
        err = (
            f"exit {rc}: "
            + (
                next(
                    (x for x in reversed(lines) if "Error" in x or "error" in x),
                    lines[-1] if lines else "",
                )
            )[:300]
        )
    return events, peak, err


def drop_caches():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")
        return True
    except OSError:
        return False


def pressure():
    """Share of the last 10 s in which some task waited for a CPU, in percent."""
    try:
        with open("/proc/pressure/cpu") as f:
            return float(f.read().split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return 0.0


def wait_for_quiet(limit, seconds):
    end = time.time() + seconds
    while seconds and pressure() > limit and time.time() < end:
        time.sleep(2)
    return pressure()


def med(xs):
    return round(statistics.median(xs), 4)


def bench_one(a, system, world, layout):
    row = dict(
        system=system,
        world=world,
        layout=layout,
        cpu_pressure=wait_for_quiet(a.max_pressure, a.wait_quiet),
    )
    os.makedirs(a.dir, exist_ok=True)
    workdir = tempfile.mkdtemp(prefix="ckpt-bench-", dir=a.dir)
    try:
        ev, peak, err = run_phase(a, system, world, layout, "save", workdir, a.limit)
        ready = next((e for e in ev if e["ev"] == "ready"), None)
        saved = next((e for e in ev if e["ev"] == "saved"), None)
        if ready:
            row.update(version=ready["version"], state_bytes=ready["nbytes"])
        if not saved:
            row["error"] = err or "no result"
            return row
        s = saved["saves"]
        warm = s[1:] or s
        row.update(
            stall_first_s=round(s[0]["stall"], 4),
            stall_s=med([x["stall"] for x in warm]),
            stall_min_s=round(min(x["stall"] for x in warm), 4),
            stall_cpu_s=med([x["stall_cpu"] for x in warm]),
            slowdown_s=med([x["slow"] for x in warm]),
            done_s=med([x["done"] for x in warm]),
            durable_s=med([x["durable"] for x in warm]),
            durable_min_s=round(min(x["durable"] for x in warm), 4),
            durable_first_s=round(s[0]["durable"], 4),
            fsync_extra_s=med([x["fsync_extra"] for x in warm]),
            step_ms=round(saved["step_s"] * 1e3, 2),
            files=s[-1]["files"],
            disk_bytes=s[-1]["bytes"],
            mem_base_bytes=peak["ready"],
            mem_peak_bytes=peak["max"],
            mem_extra_x=round((peak["max"] - peak["ready"]) / max(1, ready["nbytes"]), 2),
        )
        for label in ("cold", "warm"):
            if label == "cold":
                row["cold_is_cold"] = drop_caches()
            ev, _, err = run_phase(
                a,
                system,
                world,
                layout,
                "load",
                workdir,
                a.limit,
                ("--step", str(saved["step"]), "--name", saved["path"]),
            )
            got = next((e for e in ev if e["ev"] == "loaded"), None)
            if not got:
                row["error"] = f"load: {err or 'no result'}"
                return row
            row[f"load_{label}_s"] = round(got["sec"], 4)
            if label == "cold":
                row["load_rchar_bytes"], row["load_disk_bytes"] = (
                    int(got["rchar"]),
                    int(got["disk"]),
                )
            row["verified"] = got["bad"] == 0
            if got["bad"]:
                row["wrong_tensors"] = got["bad"]
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument(
        "--systems",
        default="all",
        help="comma list of names from systems.py, and plug-ins as module:Class or file.py:Class",
    )
    p.add_argument("--world", default="1,2,4")
    p.add_argument("--layout", default="sharded", help="sharded, replicated, or both by comma")
    p.add_argument("--gib", type=float, default=2.0, help="size of the whole state in GiB")
    p.add_argument(
        "--saves", type=int, default=3, help="the first is reported apart, the rest as a median"
    )
    p.add_argument("--dir", default=None, help="where checkpoints go (default: the temp dir)")
    p.add_argument("--limit", type=float, default=240, help="seconds for one phase of one system")
    p.add_argument("--out", default=None, help="append the lines to this file as well")
    p.add_argument(
        "--wait-quiet",
        type=float,
        default=0,
        help="before each system wait up to this many seconds for a quiet machine",
    )
    p.add_argument(
        "--max-pressure",
        type=float,
        default=20,
        help="what counts as quiet: CPU pressure avg10, percent",
    )
    p.add_argument("--list", action="store_true")
    p.add_argument("--verbose", action="store_true")
    for hidden in ("--system", "--phase", "--name"):
        p.add_argument(hidden, help=argparse.SUPPRESS)
    p.add_argument("--snapshot", help=argparse.SUPPRESS)
    p.add_argument("--step", type=int, help=argparse.SUPPRESS)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker:
        return worker(a)
    sys.path.insert(0, HERE)
    import systems

    if a.list:
        for n, c in systems.ALL.items():
            print(f"{n:28s} {','.join(c.layouts):20s} {(c.__doc__ or '').strip().splitlines()[0]}")
        return None
    a.dir = os.path.abspath(a.dir or tempfile.gettempdir())
    names = list(systems.ALL) if a.systems == "all" else a.systems.split(",")
    for layout in a.layout.split(","):
        for world in map(int, a.world.split(",")):
            for name in names:
                if name in systems.ALL and layout not in systems.ALL[name].layouts:
                    continue
                row = bench_one(a, name, world, layout)
                line = json.dumps(row)
                print(line, flush=True)
                if a.out:
                    with open(a.out, "a") as f:
                        f.write(line + "\n")
    return None


if __name__ == "__main__":
    main()
