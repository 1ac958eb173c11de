"""The fault campaign: every fault of the matrix, at random moments, on 8 ranks over 4 nodes.

    python -m bench.faults.campaign --out build/faults --times 3
    python -m bench.faults.report docs/explanation/fault-campaign.md --campaign build/faults

Nodes are network namespaces (plus one for a spare) joined through Redis. Faults come one after the
other into one long job, in random order; what is taken out comes back as a spare. At the end
of a batch the losses are compared bit by bit with those of an undisturbed job, and a row for each
fault is appended to rows.jsonl. `--times` counts the record that is kept with the source as well,
so a second call goes on where the first ended, also on another day. Needs root.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bench.faults.hit import RANKS, Struck, kill_all
from bench.faults.inject import ON_STORE, inject
from bench.faults.net import Network
from bench.faults.on_nodes import build_nvml
from bench.faults.on_store import Store
from bench.faults.processes import node_family, rank_pid
from bench.faults.rows import append_rows, known_rows
from engine.job.incident import Incident, Recovery, read_recoveries
from engine.job.keeper import read_join
from engine.job.view import JobView, read_view
from engine.processes import family_of
from engine.train.metrics import read_metrics

NODES, SPARES = 4, 1
_FIRST, _GAP, _SETTLE_STEPS, _MOMENTS = 12, 12, 6, 5
"""Steps before the first fault, between two that ranks do to themselves, after which a job counts
as well again, and from which the moment after that is drawn (as many as between checkpoints)."""
LIMIT_S = 240.0
_TAKE_OVER_S = 60.0
_MOST_TRIES = 4
"""Starts after which a job that cannot go on is given up: its recipe allows three repeats."""
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

HARMLESS = frozenset({"redis-kill", "keeper-kill", "redis-stop", "redis-partition", "link-flap",
                      "link-slow", "link-slow-both", "clock", "disk-full", "storage-hang",
                      "storage-slow", "driver-kill", "two-drivers", "log-flood"})  # fmt: skip
"""Faults after which no rank may be started anew."""
IN_RANK = frozenset({"crash", "segv", "exit0", "exit", "exception", "nan", "oom", "hang", "gil"})
ALONE = frozenset({"bug", "flip"})
"""Each has a job of its own: one ends it, rightly, the other wants another layout."""
FAULTS = (
    "kill", "stop", "crash", "segv", "exit0", "exit", "exception", "nan", "oom", "oom-kill", "hang",
    "gil", "hang-start", "slow", "node-kill", "node-stop", "executor-kill", "kill-again",
    "bad-node", "bad-spare", "two-nodes", "link-cut", "link-flap", "link-slow", "link-slow-both",
    "redis-kill", "keeper-kill", "redis-stop", "redis-partition", "driver-kill", "two-drivers",
    "clock", "torn-checkpoint", "disk-full", "storage-hang", "storage-slow", "log-flood",
    "two-at-once", "rank-and-driver", "node-and-redis", "stale-rank", "nvml-wedged", "bug", "flip",
)  # fmt: skip


class Job:
    """A driver in a process of its own, and what can be seen and done to its job."""

    def __init__(
        self, folder: Path, drills: list[str], *, steps: int = 0, recipe: str = RECIPE
    ) -> None:
        self.folder, self.drills, self.steps = folder, drills, steps
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wanted.toml").write_text(recipe)
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

    def recoveries(self) -> list[Recovery]:
        """All incidents so far."""
        return list(read_recoveries(self.folder))

    def wait_restart(self, within_s: float) -> bool:
        """Until the ranks have been started once more than now and have made a step."""
        known = self._restarts()
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if self._restarts() > known:
                return True
            time.sleep(0.05)
        return False

    def _restarts(self) -> int:
        return sum(bool(r.decision and r.stepped_s is not None) for r in self.recoveries())

    def node_of(self, rank: int) -> str:
        """The node that carries a rank now."""
        view = self.view
        nodes = view.nodes if view else ()
        return next((n.node for n in nodes if rank in n.ranks and n.state != "lost"), "")

    def wait_driver(self, within_s: float) -> bool:
        """Until the driver that runs now is in charge of all ranks; one may have been killed."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            view = self.view
            carried = sum(len(n.ranks) for n in view.nodes) if view else 0
            if view and view.driver_pid == self.driver.pid and carried == RANKS:
                return True
            time.sleep(0.05)
        return False

    def pids(self, node: str) -> list[int]:
        """Executor of a node and all below it."""
        return node_family(self.folder, node)

    def rank_pid(self, rank: int) -> int:
        """Process of a rank."""
        return rank_pid(self.folder, rank)

    def redis_pid(self) -> int:
        """The server below the keeper."""
        return family_of(read_join(self.folder / "join.json").keeper_pid)[1]

    def end(self) -> None:
        """Nothing of this job may be left."""
        self.driver.kill()
        self.driver.wait()
        kill_all(self.folder)


def judge(job: Job, fault: str, known: int, struck: Struck, before: int) -> dict:
    """Wait until the job is well again and say what came of the fault."""
    healthy = job.wait(before + _SETTLE_STEPS, LIMIT_S)
    found: list[Recovery] = [r for r in job.recoveries() if r.incident.number > known]
    restarted = [r for r in found if r.decision is not None]
    row = {"fault": fault, "step": before, "healthy": healthy, "incidents": len(found),
           "restarts": len(restarted), "wrong": struck.wrong, **struck.measured}  # fmt: skip
    if fault in HARMLESS:
        row["passed"] = healthy and not restarted and not struck.wrong
        row["said"] = "; ".join(r.incident.what for r in found)[:200]
        return row
    first = next((r for r in found if _may_be(r, struck)), None)
    if first is None:
        return row | {"passed": False, "said": "nothing was noticed"}
    incident = first.incident
    right = is_right(incident, fault, struck)
    left = {name for r in found if r.decision for name in r.decision.evict}
    mended = next((r for r in found[found.index(first) :] if r.decision and r.stepped_s), None)
    row |= {
        "detected_s": round(incident.time_s - struck.when, 2), "detected_by": first.detected_by,
        "located": right, "kind": incident.kind, "named": [*incident.nodes, *incident.ranks],
        "to_blame": [struck.node, *sorted(struck.ranks)],
        "steps_lost": max(r.steps_lost for r in found),
        "recovered_s": round(mended.incident.time_s - struck.when + (mended.stepped_s or 0), 2)
        if mended else None,
        "said": incident.what[:200], "evicted": sorted(left),
    }  # fmt: skip
    row["passed"] = healthy and right and not struck.wrong and struck.evicts in {"", *left}
    return row


def _may_be(one: Recovery, struck: Struck) -> bool:
    """Whether an incident can be what was done: not earlier, and of its kind."""
    early = one.incident.time_s < struck.when - 0.5
    return not early and (not struck.kinds or one.incident.kind in struck.kinds)


def is_right(incident: Incident, fault: str, struck: Struck) -> bool:
    """Whether the one to blame is named, and nobody else."""
    if fault == "nan":
        return incident.kind == "numbers"
    if struck.ranks:
        return bool(incident.ranks) and set(incident.ranks) <= struck.ranks
    return bool(incident.nodes) and set(incident.nodes) <= set(struck.node.split(","))


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
    rows: list[dict] = []
    if "nvml-wedged" in faults:
        os.environ["MSCTL_BENCH_NVML"] = str(build_nvml(folder))
    with Store(folder) if ON_STORE & {*faults} else contextlib.nullcontext():
        _run_batch(Job(folder, drills), faults, drills, rng, net, rows, seed)
    os.environ.pop("MSCTL_BENCH_NVML", None)
    mine = losses(folder)
    equal = bool(mine) and mine == losses(reference(out, len(mine)))[: len(mine)]
    append_rows(out, [row | {"bitwise": equal, "steps": len(mine)} for row in rows])
    print(f"batch {seed}: {len(mine)} steps, losses bitwise equal: {equal}", flush=True)


def _run_batch(
    job: Job, faults: list[str], drills: list[str], rng: random.Random, net: Network,
    rows: list[dict], seed: int,
) -> None:  # fmt: skip
    """Rows of all faults that could be done; a job that does not get well again is given up."""
    try:
        for number, fault in enumerate(faults):
            is_drill = number < len(drills)
            at = _FIRST + _GAP * number if is_drill else job.step() + rng.randrange(_MOMENTS)
            if not job.wait(at, 300.0):
                said = f"the job does not reach step {at}: {job.folder}/driver.log"
                if not job.step():
                    raise SystemExit(said)  # this machine lacks something: no row would be right
                print(said, flush=True)
                break
            if not job.wait_driver(_TAKE_OVER_S):
                print(f"no driver in charge: {job.folder}/driver.log", flush=True)
                break
            try:
                row = _one(job, fault, drills[number : number + 1], rng, net)
            except (OSError, RuntimeError, StopIteration, subprocess.SubprocessError) as error:
                row = {"fault": fault, "passed": False, "restarts": 0, "wrong": repr(error)[:300]}
            row |= {"seed": seed, "number": number, "load": os.getloadavg()[0]}
            print(json.dumps(row), flush=True)
            if not row["wrong"].startswith("skip"):
                rows.append(row)
            if not row.get("healthy"):
                break
        job.driver.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.driver.wait(120)
    finally:
        job.end()


def _one(job: Job, fault: str, drill: list[str], rng: random.Random, net: Network) -> dict:
    """One fault in a running job, and what came of it."""
    known = max((r.incident.number for r in job.recoveries()), default=0)
    if fault in IN_RANK:
        when, rank = strike(job, drill[0])
        struck, before = Struck(when, ranks=frozenset({rank})), job.step()
    else:
        struck = inject(job, net, fault, rng)
        before = job.step()  # some come some steps after they were asked for
    return judge(job, fault, known, struck, before)


def endings(out: Path, fault: str, seed: int) -> None:
    """A job that has to be given up: soon, with the right word, and with right steps until then."""
    folder = out / f"job-{fault}-{seed}"
    at = _FIRST + random.Random(seed).randrange(8)
    job = Job(folder, [f"{fault}:rank=0@step={at}"])
    try:
        when, _ = strike(job, job.drills[0])
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.driver.wait(LIMIT_S)
        code = job.driver.poll()
    finally:
        job.end()
    found = job.recoveries()
    mine = losses(folder)
    row = {
        "fault": fault, "step": at, "incidents": len(found), "seed": seed, "number": 0,
        "restarts": sum(r.decision is not None and r.decision.kind != "stop" for r in found),
        "detected_s": round(found[0].incident.time_s - when, 2) if found else None,
        "located": bool(found) and all(r.incident.kind == fault for r in found),
        "said": found[-1].incident.what[:200] if found else "", "load": os.getloadavg()[0],
        "steps": len(mine), "bitwise": mine == losses(reference(out, len(mine)))[: len(mine)],
    }  # fmt: skip
    row["passed"] = code == 1 and row["located"] and len(found) <= _MOST_TRIES
    print(json.dumps(row), flush=True)
    append_rows(out, [row])


def strike(job: Job, text: str) -> tuple[float, int]:
    """When a rank did to itself what the drill said."""
    from engine.train.drill import parse_fault
    from engine.train.strike import read_strikes

    fault = parse_fault(text)
    end = time.monotonic() + LIMIT_S
    while fault.text() not in read_strikes(job.folder) and time.monotonic() < end:
        time.sleep(0.02)
    return read_strikes(job.folder).get(fault.text(), time.time()), fault.rank


def reference(out: Path, steps: int, recipe: str = RECIPE) -> Path:
    """A job without faults; it goes on from where it was if it is too short."""
    folder = out / "reference"
    done = len(losses(folder))
    if done < steps:
        job = Job(folder, [], steps=steps - done, recipe=recipe)
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
    from bench.faults.flips import flip  # it builds on this module

    parser = argparse.ArgumentParser(prog="bench.faults.campaign")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--per-job", type=int, default=12)
    parser.add_argument("--batches", type=int, default=1000, help="at most so many in this call")
    parser.add_argument("--minutes", type=float, default=1e6, help="no new batch after so long")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out = args.out.resolve()  # processes are found by the full path of their run folder
    args.out.mkdir(parents=True, exist_ok=True)
    done = Counter(row["fault"] for row in known_rows("campaign", args.out))
    wanted = args.only or list(FAULTS)
    rng, left = random.Random(args.seed), []
    for times in range(args.times):  # in rounds, so that whenever it ends all had their turn
        round_ = [fault for fault in wanted if done[fault] <= times]
        rng.shuffle(round_)
        left += round_
    alone = [fault for fault in left if fault in ALONE]
    left = [fault for fault in left if fault not in ALONE]
    end = time.monotonic() + 60 * args.minutes
    with Network(NODES + SPARES) as net:
        for number, fault in enumerate(alone[: args.batches]):
            if time.monotonic() > end:
                return
            run_alone = endings if fault == "bug" else flip
            run_alone(args.out, fault, int(time.time()) % 1_000_000 + number)
        for start in list(range(0, len(left), args.per_job))[: args.batches]:
            if time.monotonic() > end:
                return
            seed = int(time.time()) % 1_000_000
            batch(args.out, left[start : start + args.per_job], seed, net)


if __name__ == "__main__":
    main()
