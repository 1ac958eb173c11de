"""Train for real, break one rank on purpose, and time a right verdict.

    python bench/diagnose/own_faults.py [--runs 5] [--fault hang --fault gc ...] [--state FILE]

Eight ranks (tp 2, pp 2, dp 2) train on this machine. hang: SIGSTOP; kill: SIGKILL; slow: the rank
is stopped for two thirds of the time; gc: a thread of the rank holds a large heap and collects it
twice a second; none: nothing. The clock runs from the symptom (for a hang: the stop plus the step
deadline of the recipe; for kill: the end of the job; for slow, gc and none: the end of the run) to
the end of `msctl diagnose`. With --state, runs that are in the file are not repeated.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 4.0
WAIT_S = 240
"""A busy machine may take so long to start."""
RIGHT = {
    "hang": ("rank_blocked", "unknown_hang"),
    "kill": ("crash",),
    "slow": ("perf_straggler",),
    "gc": ("perf_gc",),
    "none": ("",),
}
HOG = """
import os, threading

def work(run, victim):
    import gc, time
    mine = f"/events/rank-{victim:05d}"
    def opened():
        for handle in os.listdir("/proc/self/fd"):
            try:
                if mine in os.readlink(f"/proc/self/fd/{handle}"):
                    return True
            except OSError:
                pass
        return False
    for _ in range(600):
        time.sleep(0.5)
        if opened() and os.path.exists(f"{run}/metrics.jsonl"):
            break
    else:
        return
    heap = [[n] for n in range(3_000_000)]
    while heap:
        gc.collect()
        time.sleep(0.5)

def start():
    arguments = (os.environ["HOG_RUN"], int(os.environ["HOG_RANK"]))
    threading.Thread(target=work, args=arguments, daemon=True).start()

os.register_at_fork(after_in_child=start)
"""
"""A sitecustomize module: in the process of the victim a thread holds a large heap."""


def ranks_of(run: Path) -> dict[int, int]:
    """Rank -> process id, by who holds its event file open."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for handle in (process / "fd").iterdir():
                    target = os.readlink(handle)
                    if "/events/rank-" in target and str(run) in target:
                        found[int(target[-11:-6])] = int(process.name)
    return found


def wait_for(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def steps_done(run: Path) -> int:
    with contextlib.suppress(OSError):
        return len((run / "metrics.jsonl").read_bytes().split(b"\n")) - 1
    return 0


def slow_down(pid: int, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.06)
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.03)


def one(fault: str, victim: int) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="own-faults-"))
    run = folder / "run"
    steps = 60 if fault in ("slow", "none", "gc") else 4000
    environment = dict(os.environ)
    if fault == "gc":
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(HOG)
        environment |= {"PYTHONPATH": str(folder / "site"), "HOG_RUN": str(run)}
        environment["HOG_RANK"] = str(victim)
    command = [
        sys.executable, "-m", "msctl", "train", str(ROOT / "recipes/tiny.toml"), "--run", str(run),
        "--steps", str(steps), "--set", f"monitor.step_deadline_s={DEADLINE_S}",
        "--set", "train.eval_batches=0", "--set", "checkpoint.at_end=false",
        "--set", "job.restarts=0",
    ]  # fmt: skip
    train = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    stop = threading.Event()
    try:
        assert wait_for(lambda: steps_done(run) >= 4, WAIT_S), "the run did not start"
        pids = ranks_of(run)
        symptom = time.monotonic()
        if fault == "hang":
            os.kill(pids[victim], signal.SIGSTOP)
            symptom += DEADLINE_S
            wait_for(
                lambda: (
                    b'"open"'
                    in (run / "events" / f"rank-{(victim + 1) % 8:05d}.jsonl").read_bytes()
                ),
                40,
            )
            time.sleep(2)
        elif fault == "kill":
            os.kill(pids[victim], signal.SIGKILL)
            train.wait(timeout=WAIT_S)
        else:
            if fault == "slow":
                threading.Thread(target=slow_down, args=(pids[victim], stop), daemon=True).start()
            train.wait(timeout=3 * WAIT_S)
            symptom = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "msctl", "diagnose", str(run), "--json"],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - symptom
        said = json.loads(done.stdout)
        assert "verdict" in said, f"msctl diagnose gave no verdict: {said}"
        verdict = said["verdict"]
    finally:
        stop.set()
        with contextlib.suppress(ProcessLookupError):
            for pid in ranks_of(run).values():
                os.kill(pid, signal.SIGCONT)
            os.killpg(train.pid, signal.SIGKILL)
        train.wait()
    right = verdict["category"] in RIGHT[fault]
    right &= fault == "none" or verdict["ranks"] == [victim]
    if right:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "fault": fault,
        "victim": victim,
        "right": right,
        "seconds": round(seconds, 1),
        "category": verdict["category"],
        "ranks": verdict["ranks"],
        "what": verdict["what"][:120],
        "folder": "" if right else str(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--fault", action="append", choices=sorted(RIGHT))
    parser.add_argument("--state", type=Path, help="a file of finished runs, to go on with")
    given = parser.parse_args()
    rows = []
    if given.state is not None and given.state.exists():
        rows = [json.loads(line) for line in given.state.read_text().splitlines()]
    done = {(row["fault"], row["run"]) for row in rows}
    for number in range(given.runs):
        for fault in given.fault or ["hang", "kill", "slow", "gc", "none"]:
            if (fault, number) in done:
                continue
            victim = random.Random(f"{fault} {number}").randrange(8)
            rows.append({"run": number, **one(fault, victim)})
            print(json.dumps(rows[-1]), flush=True)
            if given.state is not None:
                with given.state.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    right = sum(bool(row["right"]) for row in rows)
    late = sum(row["seconds"] > 15 for row in rows)
    slowest = max(row["seconds"] for row in rows)
    print(f"{right} of {len(rows)} right, slowest {slowest} s, {late} later than 15 s")


if __name__ == "__main__":
    main()
