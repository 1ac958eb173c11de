"""Side by side in one run: the same faults under `msctl train` and under torchrun.

    python -m bench.faults.torchrun --out build/torchrun --times 5
    python -m bench.faults.torchrun --out build/torchrun --table

A small model on four ranks, a checkpoint every 5 steps, gloo. Three faults: a rank gets SIGKILL, a
rank gets SIGSTOP (both on one node), a node of two vanishes (its cable is pulled, all its processes
are killed) while a third stands by. Jobs take turns, a new one for every fault. What counts is the
time from the fault to the first step of the new start; after 120 s it is `never`. One line of JSON
a fault; a second call goes on where the first ended. Needs root.

torchrun gets what a careful user gives it: a group time-out of 10 s instead of 30 minutes, a look
at its workers every 0.1 s instead of every second, any number of restarts, a spare agent that waits
in the rendezvous, and the node that holds the rendezvous is never the one that is lost.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.faults.hit import kill, kill_all
from bench.faults.net import Network
from bench.faults.processes import node_family, rank_pid
from bench.faults.rows import append_rows, read_rows
from engine.job.incident import read_recoveries
from engine.job.view import read_view
from engine.processes import family_of
from engine.train.metrics import read_metrics

FAULTS = ("kill", "stop", "node")
SYSTEMS = ("msctl", "torchrun")
_FEW = 4
NEVER_S = 120.0
_START_S, _FIRST = 180.0, 12
_ABOUT = {"kill": "SIGKILL of a rank", "stop": "SIGSTOP of a rank", "node": "a node vanishes"}
RECIPE = """
name = "beside"
[model]
layers = 4
hidden = 64
heads = 4
vocab = 64
seq = 32
[layout]
dp = 4
[batch]
global_batch = 16
micro_batch = 4
[optimizer]
lr = 3e-3
[data]
format = "synthetic"
loader = "rank"
[train]
steps = 1000000
device = "cpu"
eval_batches = 0
store = "{store}"
[checkpoint]
every = 5
keep = 3
[job]
nodes = {nodes}
spares = {spares}
without_spare = "wait"
"""


class Job:
    """A job of either system in a folder of its own: started, struck, ended."""

    def __init__(self, folder: Path, fault: str) -> None:
        self.folder, self.nodes = folder, 2 if fault == "node" else 1
        folder.mkdir(parents=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.launch()

    def launch(self) -> None:
        """Start it."""
        raise NotImplementedError

    def step(self) -> int:
        """The newest step."""
        raise NotImplementedError

    def rank_pid(self, rank: int) -> int:
        """Process of a rank."""
        raise NotImplementedError

    def family(self, index: int) -> list[int]:
        """All processes of a node."""
        raise NotImplementedError

    def again(self, when: float) -> tuple[float, int] | None:
        """Seconds from the fault to the first step of a new start, and that step."""
        raise NotImplementedError

    def run(self, words: Sequence[str]) -> None:
        """One more process of the job."""
        with (self.folder / "output.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                 env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True)
            )  # fmt: skip

    def end(self) -> None:
        """Leave nothing behind."""
        kill_all(self.folder)
        for process in self.processes:
            process.kill()
            process.wait()


class Ours(Job):
    """`msctl train`; with nodes in namespaces the same driver, told how to reach them."""

    def launch(self) -> None:
        """On one node by the command, on several by the campaign's driver."""
        several = self.nodes > 1
        text = RECIPE.format(nodes=self.nodes, spares=int(several),
                             store="redis" if several else "tcp")  # fmt: skip
        recipe = self.folder / "wanted.toml"
        recipe.write_text(text)
        if several:
            self.run([sys.executable, "-m", "bench.faults.drive", str(self.folder), "0"])
        else:
            self.run([sys.executable, "-m", "msctl", "train", str(recipe),
                      "--run", str(self.folder)])  # fmt: skip

    def step(self) -> int:
        """From its metrics."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        return rows[-1].step if rows else 0

    def rank_pid(self, rank: int) -> int:
        """By the log that it writes."""
        return rank_pid(self.folder, rank)

    def family(self, index: int) -> list[int]:
        """The executor and all below it."""
        view = read_view(self.folder)
        carrying = [n.node for n in view.nodes if n.ranks] if view else []
        return node_family(self.folder, carrying[index])

    def again(self, when: float) -> tuple[float, int] | None:
        """From the incident's record."""
        for one in read_recoveries(self.folder):
            incident = one.incident
            if incident.time_s >= when - 0.5 and one.decision and one.stepped_s is not None:
                return incident.time_s - when + one.stepped_s, one.resumed_from + 1
        return None


class Theirs(Job):
    """torchrun with a plain script."""

    def launch(self) -> None:
        """One agent a node, and one that waits."""
        script = [str(Path(__file__).with_name("ddp.py")), str(self.folder)]
        common = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "100",
                  "--monitor-interval", "0.1"]  # fmt: skip
        if self.nodes == 1:
            self.run([*common, "--standalone", "--nproc-per-node", "4", *script])
            return
        for index in range(self.nodes + 1):
            self.run(
                [*Network.words(f"node-{index}"), *common, "--nnodes", str(self.nodes),
                 "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "beside",
                 "--rdzv-conf", f"is_host={int(index == 0)}",
                 "--rdzv-endpoint", "10.77.0.10:29400", "--local-addr", f"10.77.0.{10 + index}",
                 *script]
            )  # fmt: skip
            time.sleep(1.0 if index else 3.0)

    def _lines(self) -> list[tuple[float, int, str]]:
        try:
            text = (self.folder / "steps.log").read_text()
        except OSError:
            return []
        found = [line.split() for line in text.splitlines()]
        return [(float(w[0]), int(w[1]), w[2]) for w in found if len(w) == 3]

    def step(self) -> int:
        """From its log."""
        lines = self._lines()
        return lines[-1][1] if lines else 0

    def rank_pid(self, rank: int) -> int:
        """It left it."""
        return int((self.folder / f"pid-{rank}").read_text())

    def family(self, index: int) -> list[int]:
        """The agent that carries a rank, by that rank; not the one with the rendezvous."""
        others = [p.pid for p in self.processes[1:]]
        pids = {self.rank_pid(rank) for rank in range(4)}
        carries = [pid for pid in others if pids & {*family_of(pid)}]
        assert carries, "a second agent carries ranks"
        return family_of(carries[0])

    def again(self, when: float) -> tuple[float, int] | None:
        """The first line of another start after the fault."""
        before = [start for t, _, start in self._lines() if t < when]
        for t, step, start in self._lines():
            if t >= when and before and start not in before:
                return t - when, step
        return None


_JOBS: dict[str, type[Job]] = {"msctl": Ours, "torchrun": Theirs}


def strike(job: Job, fault: str, rng: random.Random) -> float:
    """Do it; returns when."""
    time.sleep(rng.uniform(0.0, 1.0))
    if fault != "node":
        pid = job.rank_pid(rng.randrange(4))
        now = time.time()
        kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        return now
    family = job.family(1)
    now = time.time()
    Network.cut(_index_of(family[0]))
    for pid in family:
        kill(pid, signal.SIGKILL)
    return now


def _index_of(pid: int) -> int:
    """The namespace a process is in."""
    for index in range(3):
        named = Path(f"/run/netns/ms{index}").stat().st_ino
        if Path(f"/proc/{pid}/ns/net").stat().st_ino == named:
            return index
    raise RuntimeError(f"process {pid} is on no node")


def measure(out: Path, system: str, fault: str, number: int, rng: random.Random) -> dict:
    """One job, one fault."""
    folder = (out / f"{system}-{fault}-{number}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    row: dict = {"system": system, "fault": fault, "number": number, "load": os.getloadavg()[0],
                 "group_s": float(os.environ["GROUP_S"])}  # fmt: skip
    with Network(3):
        job = _JOBS[system](folder, fault)
        try:
            if not _until(lambda: job.step() >= _FIRST, _START_S):
                return row | {"wrong": f"no {_FIRST} steps within {_START_S:g} s"}
            when = strike(job, fault, rng)
            before = job.step()
            _until(lambda: job.again(when) is not None, NEVER_S)
            found = job.again(when)
            row |= {"s": round(found[0], 2) if found else None,
                    "lost": max(0, before - found[1] + 1) if found else None}  # fmt: skip
        finally:
            job.end()
    return row


def _until(done: Callable[[], bool], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if done():
            return True
        time.sleep(0.05)
    return False


def table(rows: list[dict]) -> str:
    """As Markdown: medians and worst, or all times where they are few, by fault and system."""
    lines = ["| fault to first new step | `msctl train` | torchrun |", "| --- | --- | --- |"]
    for fault in FAULTS:
        cells = [
            _cell([r["s"] for r in rows if (r["system"], r["fault"]) == (system, fault)
                   and "s" in r])
            for system in SYSTEMS
        ]  # fmt: skip
        lines.append(f"| {_ABOUT[fault]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float | None]) -> str:
    if not values:
        return "not run"
    known = [NEVER_S * 2 if value is None else value for value in values]
    if len(known) < _FEW:  # a median of two would hide that one of them never came back
        return ", ".join(map(_seconds, known))
    middle, worst = statistics.median(known), max(known)
    count = f"{len(values)} {'time' if len(values) == 1 else 'times'}"
    return f"{_seconds(middle)} (worst {_seconds(worst)}, {count})"


def _seconds(value: float) -> str:
    return f"never (> {NEVER_S:g} s)" if value > NEVER_S else f"{value:.1f} s"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.torchrun")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--minutes", type=float, default=1e6, help="no new job after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="only print what there is")
    parser.add_argument("--group-s", type=float, default=10.0, help="torch's group time-out")
    args = parser.parse_args()
    os.environ["GROUP_S"] = str(args.group_s)
    args.out.mkdir(parents=True, exist_ok=True)
    rng, end = random.Random(args.seed), time.monotonic() + 60 * args.minutes
    wanted = [(n, f, s) for n in range(args.times) for f in args.only for s in args.systems]
    for number, fault, system in [] if args.table else wanted:
        done = {(r["number"], r["fault"], r["system"]) for r in read_rows(args.out)
                if "s" in r}  # fmt: skip
        if (number, fault, system) in done or time.monotonic() > end:
            continue
        row = measure(args.out, system, fault, number, rng)
        print(json.dumps(row), flush=True)
        append_rows(args.out, [row])
    print(table(read_rows(args.out)))


if __name__ == "__main__":
    main()
