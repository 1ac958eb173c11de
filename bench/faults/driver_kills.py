"""Kill the driver at random instants, again and again, and start another: never two, never twice.

    python -m bench.faults.driver_kills --out build/driver-kills --times 200

Jobs of two ranks on two nodes joined through Redis, one after the other. Every driver is killed
with SIGKILL after a random time, start-up included. After each kill another is started. Checked all
the while: no rank has two processes; in the end: the losses are those of a job that nobody
disturbed, and how many starts of ranks there were. A line of JSON a job; a second call goes on.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.faults.hit import kill_all
from bench.faults.rows import append_rows, read_rows
from engine.job.incident import read_recoveries
from engine.job.view import read_view
from engine.train.metrics import read_metrics

_END_S = 1200.0
_LONG = 0.6
"""Share of drivers that live until the job makes steps."""
_DRIVE = """
import sys
from pathlib import Path
from engine.job.driver import Driver, Watch
from engine.job.remote import ProcessLauncher, RemotePlace
from engine.spec.load import load_recipe
folder = Path(sys.argv[1])
place = RemotePlace(ProcessLauncher(), host="127.0.0.1", lease_s=1.0)
note = lambda text: print(text, flush=True)
driver = Driver(load_recipe(folder / "wanted.toml"), folder, Watch(on_note=note), place=place)
print(driver.run(steps=0, resume="auto").ended, flush=True)
"""
RECIPE = """
name = "kills"
[model]
layers = 2
hidden = {hidden}
heads = 2
vocab = 32
seq = 32
[layout]
dp = 2
[batch]
global_batch = 4
[data]
format = "synthetic"
loader = "rank"
[train]
steps = {steps}
device = "cpu"
eval_batches = 0
store = "redis"
[checkpoint]
every = 25
keep = 2
[monitor]
tensorboard = false
events = false
[job]
nodes = 2
restarts = 1000
without_spare = "wait"
"""


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """One driver."""
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", _DRIVE, str(folder)], stdout=log, stderr=log,
                                env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip


def ranks_of(folder: Path) -> dict[str, int]:
    """Log of a rank -> processes that write into it."""
    found: dict[str, int] = {}
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith(f"{folder}/log/rank-"):
            found[target] = found.get(target, 0) + 1
    return found


def steps_of(folder: Path) -> int:
    """Steps done."""
    rows = read_metrics(folder / "metrics.jsonl")
    return rows[-1].step if rows else 0


def losses(folder: Path) -> list[tuple[int, float, float]]:
    """What has to be the same to the last bit."""
    return [(m.step, m.loss, m.grad_norm) for m in read_metrics(folder / "metrics.jsonl")]


def disturb(out: Path, seed: int, most_kills: int, longest_s: float, text: str) -> dict:
    """One job from its first driver to its end; returns what came of it."""
    rng = random.Random(seed)
    folder = (out / f"job-{seed}").resolve()
    folder.mkdir(parents=True)
    (folder / "wanted.toml").write_text(text)
    kills = early = twice = 0
    while kills < most_kills:
        driver, before = start(folder), steps_of(folder)
        # some just after they have begun, so that the next finds a lease that is still held; others
        # once ranks make steps, which on a slow machine no driver would live to see
        is_long = rng.random() < _LONG
        end = time.monotonic() + rng.uniform(0.05, 2.0)
        while is_long and steps_of(folder) <= before and driver.poll() is None:
            twice = max(twice, max(ranks_of(folder).values(), default=0))
            time.sleep(0.05)
        end = time.monotonic() + rng.uniform(0.05, longest_s) if is_long else end
        while time.monotonic() < end and driver.poll() is None:
            twice = max(twice, max(ranks_of(folder).values(), default=0))
            time.sleep(0.05)
        if driver.poll() is not None:
            break
        driver.kill()
        driver.wait()
        kills, early = kills + 1, early + (steps_of(folder) == 0)
    reached, started = steps_of(folder), time.monotonic()
    if driver.returncode == -signal.SIGKILL:
        driver = start(folder)
        while driver.poll() is None and time.monotonic() < started + _END_S:
            twice = max(twice, max(ranks_of(folder).values(), default=0))
            time.sleep(0.2)
    code = driver.poll()
    kill_all(folder)
    view = read_view(folder)
    return {
        "seed": seed, "kills": kills, "kills_before_first_step": early, "code": code,
        "steps_at_last_kill": reached, "steps": steps_of(folder),
        "processes_of_a_rank_at_once": twice, "starts_of_ranks": view.attempt + 1 if view else 0,
        "incidents": len(read_recoveries(folder)), "load": os.getloadavg()[0],
        "bitwise": losses(folder) == losses(whole(out, text)),
    }  # fmt: skip


def whole(out: Path, text: str) -> Path:
    """The same job without any kill, made once."""
    folder = out.resolve() / f"whole-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if not (folder / "result.json").exists():
        folder.mkdir(exist_ok=True)
        (folder / "wanted.toml").write_text(text)
        start(folder).wait(timeout=_END_S)
    return folder


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.driver_kills")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=200, help="kills in all")
    parser.add_argument("--each", type=int, default=25, help="kills of one job at most")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--longest", type=float, default=8.0, help="life of a driver, seconds")
    parser.add_argument("--minutes", type=float, default=1e6, help="no new job after so long")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    text = RECIPE.format(steps=args.steps, hidden=args.hidden)
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        left = args.times - sum(row["kills"] for row in read_rows(args.out))
        if left <= 0:
            break
        seed = int(time.time())
        row = disturb(args.out, seed, min(left, args.each), args.longest, text)
        print(json.dumps(row), flush=True)
        append_rows(args.out, [row])


if __name__ == "__main__":
    main()
