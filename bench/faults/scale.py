"""The driver of a large job: what it costs, how late it is, and how long it takes to mend.

    python -m bench.faults.scale --out build/scale --nodes 1536 --spares 16

A real driver and a real Redis; executors of all nodes are played by one process (`fake_nodes.py`):
eight ranks each, two beats a second each. Measured in a steady stretch: processor time of driver
and Redis, and how old a beat is when the driver has read it. Then a rank exits, a node goes silent,
a rank is stopped: when each is noticed, and when all ranks have been asked to start again. A row a
size is appended to rows.jsonl. The stand-in takes a good part of a core itself.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.faults.rows import append_rows
from engine.job.incident import read_recoveries
from engine.job.keeper import FILE, read_join
from engine.job.view import read_view
from engine.processes import family_of
from engine.train.metrics import read_metrics

RECIPE = """
name = "scale"
[model]
layers = 48
hidden = 64
heads = 8
vocab = 64
seq = 32
[layout]
tp = 8
pp = {pp}
dp = {dp}
[batch]
global_batch = {dp}
[data]
format = "synthetic"
loader = "rank"
[train]
steps = 100000
device = "cpu"
eval_batches = 0
store = "redis"
[checkpoint]
every = 5
[monitor]
tensorboard = false
[job]
nodes = {nodes}
spares = {spares}
without_spare = "wait"
"""
_TICKS = os.sysconf("SC_CLK_TCK")
_LIMIT_S = 300.0


def cpu_s(pids: list[int]) -> float:
    """Processor seconds of processes so far."""
    total = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / _TICKS


class Large:
    """A job in a folder: its driver, its stand-ins."""

    def __init__(self, folder: Path, nodes: int, spares: int, step_s: float) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        pp = next(n for n in (8, 4, 2, 1) if nodes % n == 0)
        text = RECIPE.format(nodes=nodes, spares=spares, pp=pp, dp=nodes // pp)
        (folder / "wanted.toml").write_text(text)
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        log = (folder / "driver.log").open("wb")
        self.began = time.time()
        self.driver = subprocess.Popen(
            [sys.executable, "-m", "bench.faults.scale", "--drive", str(folder)],
            stdout=log, stderr=log, env=env,
        )  # fmt: skip
        self.fakes = subprocess.Popen(
            [sys.executable, "-m", "bench.faults.fake_nodes", str(folder), str(nodes + spares),
             str(8 * nodes), str(step_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True,
        )  # fmt: skip

    def wait(self, done, what: str) -> None:  # type: ignore[no-untyped-def]
        """Until `done()`; SystemExit if the driver ends or it takes too long."""
        end = time.monotonic() + _LIMIT_S
        while not done():
            if self.driver.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{what} did not come: see {self.folder}/driver.log")
            time.sleep(0.02)

    def step(self) -> int:
        """Steps made."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        return rows[-1].step if rows else 0

    def strike(self, word: str, node: str) -> float:
        """Have something happen to a node; returns when it did."""
        assert self.fakes.stdin is not None, "a pipe was asked for"
        assert self.fakes.stdout is not None, "a pipe was asked for"
        self.fakes.stdin.write(f"{word} {node}\n")
        self.fakes.stdin.flush()
        return float(self.fakes.stdout.readline().split()[0])

    def end(self) -> None:
        """Nothing may be left."""
        self.driver.send_signal(signal.SIGINT)
        try:
            self.driver.wait(60)
        except subprocess.TimeoutExpired:
            self.driver.kill()
        self.fakes.kill()


def steady(job: Large, length_s: float) -> dict[str, float]:
    """Shares of a core, and ages of beats, over a stretch without faults."""
    redis = family_of(read_join(job.folder / FILE).keeper_pid)
    who = {"driver": [job.driver.pid], "redis": redis, "stand_in": [job.fakes.pid]}
    before = {name: cpu_s(pids) for name, pids in who.items()}
    begin, ages = time.monotonic(), []
    while time.monotonic() - begin < length_s:
        time.sleep(0.5)
        view = read_view(job.folder)
        ages += [-n.clock_off_s for n in view.nodes if n.state == "active"] if view else []
    took = time.monotonic() - begin
    shares = {f"{name}_cores": (cpu_s(pids) - before[name]) / took for name, pids in who.items()}
    resident = Path(f"/proc/{job.driver.pid}/statm").read_text().split()[1]
    return shares | {
        "beat_age_s": statistics.median(ages), "beat_age_worst_s": max(ages),
        "driver_mib": int(resident) * os.sysconf("SC_PAGE_SIZE") / 2**20,
    }  # fmt: skip


def fault(job: Large, word: str, node: str) -> dict[str, float]:
    """Strike, and wait for the next step."""
    known = len(read_recoveries(job.folder))
    when = job.strike(word, node)

    def mended() -> bool:
        found = read_recoveries(job.folder)
        return len(found) > known and found[-1].stepped_s is not None

    job.wait(mended, f"the step after {word}")
    one = read_recoveries(job.folder)[-1]
    noticed = one.incident.time_s - when
    return {
        f"{word}_noticed_s": noticed, f"{word}_suspended_s": noticed + one.suspended_s,
        f"{word}_started_s": noticed + one.started_s,
        f"{word}_stepped_s": noticed + (one.stepped_s or 0.0),
        f"{word}_right": node in one.incident.nodes,
    }  # fmt: skip


def measure(out: Path, nodes: int, spares: int, step_s: float, length_s: float) -> dict:
    """One size."""
    job = Large(out / f"job-{nodes}", nodes, spares, step_s)
    try:
        job.wait(lambda: job.step() >= 1, "the first step")
        row: dict = {"nodes": nodes, "ranks": 8 * nodes, "step_s": step_s,
                     "first_step_s": time.time() - job.began}  # fmt: skip
        job.wait(lambda: job.step() >= 4, "steps")
        row |= steady(job, length_s)
        for word in ("exit", "silence", "hang"):
            view = read_view(job.folder)
            carrying = [n.node for n in view.nodes if n.state == "active"] if view else []
            row |= fault(job, word, random.choice(carrying))
            at = job.step()
            job.wait(lambda at=at: job.step() >= at + 4, "steps")
    finally:
        job.end()
    return row


def drive(folder: Path) -> None:
    """The driver's process."""
    from engine.job import remote
    from engine.job.driver import Driver, Watch
    from engine.job.remote import NoLauncher, RemotePlace
    from engine.spec.load import load_recipe

    remote._CLIENTS_PER_RANK = 0  # there are no ranks, and here may be too few open files
    begin = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - begin:8.2f} {text[:300]}", flush=True)

    place = RemotePlace(NoLauncher(), host="127.0.0.1")
    driver = Driver(load_recipe(folder / "wanted.toml"), folder, Watch(on_note=note), place=place)
    note(driver.run(steps=0, resume="auto").ended)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.scale")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nodes", type=int, nargs="*", default=[64, 256, 1536])
    parser.add_argument("--spares", type=int, default=16)
    parser.add_argument("--step-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the steady stretch")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        drive(args.drive)
        return
    for nodes in args.nodes:
        row = measure(args.out.resolve(), nodes, args.spares, args.step_s, args.seconds)
        row["load"] = os.getloadavg()[0]
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        append_rows(args.out, [row])


if __name__ == "__main__":
    main()
