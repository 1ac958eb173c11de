"""Kill the driver at random instants, again and again, and start another: never two, never twice.

    python -m bench.faults.driver_kills --out build/driver-kills --times 200

A job of two ranks on two nodes joined through Redis. Every driver is killed with SIGKILL after a
random time, start-up included. After each kill another is started. Checked all the while: no rank
has two processes; in the end: the losses are those of a job that nobody disturbed, and how many
starts of ranks there were. Some kills are of a driver that has just been stopped, so that the next
one finds a lease that is still held.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from engine.job.incident import read_recoveries
from engine.job.view import read_view
from engine.train.metrics import read_metrics

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


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.driver_kills")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=6.0, help="longest life of a driver, seconds")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    folder = (args.out / f"job-{args.seed}").resolve()
    folder.mkdir(parents=True)
    text = RECIPE.format(steps=args.steps, hidden=args.hidden)
    (folder / "wanted.toml").write_text(text)
    kills, twice, after_end = 0, 0, 0
    while kills < args.times:
        driver = start(folder)
        end = time.monotonic() + rng.uniform(0.1, args.most)
        while time.monotonic() < end and driver.poll() is None:
            twice = max(twice, max(ranks_of(folder).values(), default=0))
            time.sleep(0.05)
        if driver.poll() is not None:
            after_end += 1
            break
        driver.kill()
        driver.wait()
        kills += 1
    reached = steps_of(folder)
    if not after_end:
        driver = start(folder)
        driver.wait(timeout=1200)
    view = read_view(folder)
    whole = args.out.resolve() / f"whole-{args.steps}-{args.hidden}"
    if not whole.exists():
        whole.mkdir()
        (whole / "wanted.toml").write_text(text)
        start(whole).wait(timeout=1200)
    row = {
        "kills": kills, "steps_at_last_kill": reached, "steps": steps_of(folder),
        "processes_of_a_rank_at_once": twice, "starts_of_ranks": view.attempt + 1 if view else 0,
        "incidents": len(read_recoveries(folder)), "bitwise": losses(folder) == losses(whole),
    }  # fmt: skip
    print(json.dumps(row))
    with (args.out / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
