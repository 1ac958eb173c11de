"""The fault campaign: every fault of the matrix, at random moments, on 8 ranks over 4 nodes.

    python -m bench.faults.campaign --out build/faults --times 3
    python -m bench.faults.campaign --out build/faults --report docs/explanation/fault-campaign.md

Nodes are network namespaces (plus one for a spare) joined through Redis. Faults come one after the
other into one long job, in random order; what is taken out comes back as a spare. After each, one
row is appended to rows.jsonl: resumable, a second call goes on where the first ended. At the end of
a batch the losses are compared bit by bit with those of an undisturbed job. Needs root.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bench.faults.net import Network
from engine.comm.resp import Client, parse_url
from engine.job.drills import family_of, tear_checkpoint
from engine.job.incident import Recovery, read_recoveries
from engine.job.keeper import read_join
from engine.job.view import JobView, read_view
from engine.train.metrics import read_metrics

NODES, SPARES, RANKS = 4, 1, 8
_FIRST, _GAP, _SETTLE_STEPS = 12, 16, 6
"""Steps before the first fault, between two, and after which a job counts as well again."""
_LIMIT_S = 240.0
_SLOW_STEPS = 60
RECIPE = """
name = "campaign"
[model]
layers = 4
hidden = 64
heads = 4
vocab = 64
seq = 32
position = "rotary"
dropout = 0.1
[layout]
tp = 2
pp = 2
dp = 2
[batch]
global_batch = 16
micro_batch = 2
[optimizer]
lr = 3e-3
[data]
format = "synthetic"
loader = "rank"
[train]
steps = 20000
device = "cpu"
eval_batches = 0
store = "redis"
[checkpoint]
every = 5
keep = 3
[monitor]
tensorboard = false
timeout_s = 120.0
[job]
nodes = 4
spares = 1
restarts = 1000
without_spare = "wait"
wait_s = 120.0
"""

HARMLESS = frozenset({"redis-kill", "redis-stop", "redis-partition", "link-flap", "link-slow",
                      "clock", "disk-full", "storage-hang", "driver-kill"})  # fmt: skip
"""Faults after which no rank may be started anew."""
OF_NODE = frozenset({"node-kill", "node-stop", "link-cut"})
FAULTS = (
    "kill", "stop", "crash", "segv", "exit0", "exit", "exception", "nan", "oom", "hang", "gil",
    "slow", "node-kill", "node-stop", "link-cut", "link-flap", "link-slow", "redis-kill",
    "redis-stop", "redis-partition", "driver-kill", "clock", "torn-checkpoint", "disk-full",
    "two-at-once", "executor-kill",
)  # fmt: skip
IN_RANK = frozenset({"crash", "segv", "exit0", "exit", "exception", "nan", "oom", "hang", "gil"})


class Job:
    """A driver in a process of its own, and what can be seen and done to its job."""

    def __init__(self, folder: Path, drills: list[str], *, steps: int = 0) -> None:
        self.folder, self.drills, self.steps = folder, drills, steps
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wanted.toml").write_text(RECIPE)
        self.start()

    def start(self) -> None:
        """A driver; a second one takes over."""
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "bench.faults.drive", str(self.folder),
                 str(self.steps), *self.drills],
                stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    @property
    def view(self) -> JobView | None:
        """What the driver last said."""
        return read_view(self.folder)

    def step(self) -> int:
        """Steps done."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        return rows[-1].step if rows else 0

    def wait(self, step: int, within_s: float) -> bool:
        """Until a step is done; False if it takes too long or the driver is gone."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if self.step() >= step:
                return True
            if self.driver.poll() is not None:
                return self.step() >= step
            time.sleep(0.05)
        return False

    def node_of(self, rank: int) -> str:
        """The node that carries a rank now."""
        view = self.view
        nodes = view.nodes if view else ()
        return next((n.node for n in nodes if rank in n.ranks and n.state != "lost"), "")

    def pids(self, node: str) -> list[int]:
        """Executor of a node and all below it."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:3] == [sys.executable.encode(), b"-m", b"engine.job.join"] and (
                words[3:5] == [str(self.folder).encode(), node.encode()]
            ):
                return family_of(int(path.name))
        return []

    def rank_pid(self, rank: int) -> int:
        """Process of a rank, found by its log."""
        log = str(self.folder / "log" / f"rank-{rank:05d}.log")
        for path in Path("/proc").glob("[0-9]*/fd/1"):
            try:
                if os.readlink(path) == log:
                    return int(path.parts[2])
            except OSError:
                continue
        return 0

    def redis_pid(self) -> int:
        """The server below the keeper."""
        return family_of(read_join(self.folder / "join.json").keeper_pid)[1]

    def end(self) -> None:
        """Nothing of this job may be left."""
        self.driver.kill()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.folder).encode() in words and b"-m" in words:
                for pid in family_of(int(path.name)):
                    kill(pid, signal.SIGKILL)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    if pid > 1:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def inject(job: Job, net: Network, fault: str, rng: random.Random) -> tuple[float, set[int], str]:
    """Do it; returns when, the ranks and the node that are to blame (none for harmless ones)."""
    rank = rng.randrange(RANKS)
    node = job.node_of(rank)
    index = int(node.partition(".")[0].rpartition("-")[2])
    time.sleep(rng.uniform(0.0, 0.5))
    now = time.time()
    if fault in ("kill", "stop"):
        kill(job.rank_pid(rank), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    elif fault == "two-at-once":
        other = (rank + 3) % RANKS
        kill(job.rank_pid(rank), signal.SIGKILL)
        kill(job.rank_pid(other), signal.SIGKILL)
        return now, {rank, other}, ""
    elif fault == "torn-checkpoint":
        tear_checkpoint(job.folder / "ckpt")
        kill(job.rank_pid(rank), signal.SIGKILL)
    elif fault in ("node-kill", "node-stop"):
        for pid in job.pids(node):
            kill(pid, signal.SIGKILL if fault == "node-kill" else signal.SIGSTOP)
        return now, set(), node
    elif fault == "executor-kill":
        kill(job.pids(node)[0], signal.SIGKILL)
        return now, set(), node
    elif fault == "driver-kill":
        job.driver.kill()
        job.driver.wait()
        job.start()
    else:
        _outside(job, net, fault, rank, index)
    if fault == "link-cut":
        return now, set(), node
    return now, set() if fault in HARMLESS else {rank}, ""


def _outside(job: Job, net: Network, fault: str, rank: int, index: int) -> None:
    """Faults of network, Redis and disk, with the time that they last."""
    if fault == "link-cut":
        net.cut(index)
        time.sleep(12.0)
        net.join(index)
    elif fault == "link-flap":
        net.cut(index)
        time.sleep(3.0)
        net.join(index)
    elif fault == "link-slow":
        net.slow(index, "20mbit")
        time.sleep(10.0)
        net.fast(index)
    elif fault == "redis-kill":
        kill(job.redis_pid(), signal.SIGKILL)
    elif fault == "redis-stop":
        pid = job.redis_pid()
        kill(pid, signal.SIGSTOP)
        time.sleep(20.0)
        kill(pid, signal.SIGCONT)
    elif fault == "redis-partition":
        net.deaf(index)
        time.sleep(8.0)
        net.hears(index)
    elif fault == "clock":
        join = read_join(job.folder / "join.json")
        client = Client(parse_url(join.redis))
        token = client.call(("GET", f"{join.job}:token"))[0]
        text = json.dumps({"id": "clock", "token": int(token), "op": "clock", "value": 3600.0})
        client.call(("RPUSH", f"{join.job}:orders:{job.node_of(rank)}", text))
        client.close()
    elif fault == "disk-full":
        fill = job.folder / "ckpt" / "fill"
        with fill.open("wb") as file:
            try:
                while True:
                    file.write(b"\0" * (1 << 20))
            except OSError:
                pass
        time.sleep(5.0)
        fill.unlink()
    elif fault == "slow":
        pid, until = job.rank_pid(rank), job.step() + _SLOW_STEPS
        end = time.monotonic() + 120.0
        while time.monotonic() < end and job.step() < until and Path(f"/proc/{pid}").exists():
            kill(pid, signal.SIGSTOP)
            time.sleep(0.03)
            kill(pid, signal.SIGCONT)
            time.sleep(0.02)


def judge(job: Job, fault: str, known: int, when: float, ranks: set[int], node: str,
          before: int) -> dict:  # fmt: skip
    """Wait until the job is well again and say what came of the fault."""
    healthy = job.wait(before + _SETTLE_STEPS, _LIMIT_S)
    found: list[Recovery] = [r for r in read_recoveries(job.folder) if r.incident.number > known]
    restarted = [r for r in found if r.decision is not None]
    first = found[0] if found else None
    row = {"fault": fault, "step": before, "healthy": healthy, "incidents": len(found),
           "restarts": len(restarted)}  # fmt: skip
    if fault in HARMLESS:
        row["passed"] = healthy and not restarted
        row["said"] = "; ".join(r.incident.what for r in found)[:200]
        return row
    if first is None:
        return row | {"passed": False, "said": "nothing was noticed"}
    incident = first.incident
    right = (set(incident.ranks) & ranks == set(incident.ranks) and bool(incident.ranks)) if (
        ranks
    ) else incident.nodes == (node,)  # fmt: skip
    if fault == "nan":
        right = incident.kind == "numbers"
    row |= {
        "detected_s": round(incident.time_s - when, 2), "detected_by": first.detected_by,
        "located": right, "kind": incident.kind, "named": [*incident.nodes, *incident.ranks],
        "to_blame": [node, *sorted(ranks)], "steps_lost": first.steps_lost,
        "recovered_s": round(incident.time_s - when + first.stepped_s, 2)
        if first.stepped_s is not None else None,
        "said": incident.what[:200],
    }  # fmt: skip
    row["passed"] = healthy and right
    return row


def batch(out: Path, faults: list[str], seed: int, net: Network) -> None:
    """One job with these faults one after the other, each a row; then the losses are compared.

    What ranks do to themselves comes first, at steps that are known beforehand; the rest when those
    are over, since some of it lasts for any number of steps.
    """
    rng = random.Random(seed)
    faults = sorted(faults, key=lambda fault: fault not in IN_RANK)
    folder = out / f"job-{seed}"
    (folder / "ckpt").mkdir(parents=True)
    inside = [fault for fault in faults if fault in IN_RANK]
    drills = [
        f"{fault}:rank={rng.randrange(RANKS)}@step={_FIRST + _GAP * i + rng.randrange(4)}"
        for i, fault in enumerate(inside)
    ]
    full = "disk-full" in faults
    if full:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder / "ckpt")],
                       check=True)  # fmt: skip
    job = Job(folder, drills)
    rows = []
    try:
        for number, fault in enumerate(faults):
            at = _FIRST + _GAP * number
            assert job.wait(at, 300.0), f"the job does not reach step {at}: {folder}/driver.log"
            known = max((r.incident.number for r in read_recoveries(folder)), default=0)
            if fault in IN_RANK:
                when, rank = _strike(job, drills[number])
                ranks, node, before = {rank}, "", job.step()
            else:
                before = job.step()
                when, ranks, node = inject(job, net, fault, rng)
            row = judge(job, fault, known, when, ranks, node, before)
            rows.append(row | {"seed": seed, "number": number, "load": os.getloadavg()[0]})
            print(json.dumps(rows[-1]), flush=True)
        job.driver.terminate()
        job.driver.wait(120)
    finally:
        job.end()
        if full:
            subprocess.run(["umount", "-l", str(folder / "ckpt")], check=False)
    mine = losses(folder)
    equal = bool(mine) and mine == losses(reference(out, len(mine)))[: len(mine)]
    with (out / "rows.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps(row | {"bitwise": equal, "steps": len(mine)}) + "\n")
    print(f"batch {seed}: {len(mine)} steps, losses bitwise equal: {equal}", flush=True)


def _strike(job: Job, text: str) -> tuple[float, int]:
    """When a rank did to itself what the drill said."""
    from engine.train.drill import parse_fault
    from engine.train.strike import read_strikes

    fault = parse_fault(text)
    end = time.monotonic() + _LIMIT_S
    while fault.text() not in read_strikes(job.folder) and time.monotonic() < end:
        time.sleep(0.02)
    return read_strikes(job.folder).get(fault.text(), time.time()), fault.rank


def reference(out: Path, steps: int) -> Path:
    """A job without faults; it goes on from where it was if it is too short."""
    folder = out / "reference"
    done = len(losses(folder))
    if done < steps:
        job = Job(folder, [], steps=steps - done)
        try:
            job.driver.wait(600)
        finally:
            job.end()
    return folder


def losses(folder: Path) -> list[tuple[int, float, float]]:
    """What has to be the same to the last bit."""
    rows = read_metrics(folder / "metrics.jsonl")
    return [(m.step, m.loss, m.grad_norm) for m in rows]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.campaign")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--per-job", type=int, default=6)
    parser.add_argument("--batches", type=int, default=1000, help="at most so many in this call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.report:
        from bench.faults.report import write_report

        write_report(args.out, args.report)
        return
    done = Counter(row["fault"] for row in read_rows(args.out))
    wanted = args.only or list(FAULTS)
    left = [f for f in wanted for _ in range(max(0, args.times - done[f]))]
    random.Random(args.seed).shuffle(left)
    with Network(NODES + SPARES) as net:
        for start in list(range(0, len(left), args.per_job))[: args.batches]:
            seed = int(time.time()) % 1_000_000
            batch(args.out, left[start : start + args.per_job], seed, net)


def read_rows(out: Path) -> list[dict]:
    """All rows so far."""
    path = out / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
