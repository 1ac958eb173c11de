"""Predict the engine's own step times on this machine: calibrate on two layouts, predict ten.

    python bench/plan/own.py run FOLDER [--rate 400mbit] [--only NAME ...]
    python bench/plan/own.py score FOLDER [--rate 400mbit]

`run` trains every layout below for a few steps with `msctl train`, each rank on one thread, and
leaves run folders. With --rate all traffic between ranks shares one link of that rate: the
loopback of a network namespace of its own (needs root and iproute2). `score` calibrates on the
first two layouts and prints predicted against measured for the other ten. On a machine with other
work, run it with a higher priority than that: ranks that wait for one another wait for it too.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

RECIPE = """name = "own"
[model]
layers = 8
hidden = 256
heads = 8
vocab = 256
seq = 128
position = "rotary"
[layout]
tp = {tp}
pp = {pp}
vpp = {vpp}
dp = {dp}
[batch]
global_batch = 16
micro_batch = 2
[data]
format = "synthetic"
source = []
[train]
steps = {steps}
precision = "fp32"
device = "cpu"
threads = 1
eval_batches = 0
[checkpoint]
at_end = false
[monitor]
tensorboard = false
"""

LAYOUTS = (
    (1, 1, 1, 1), (2, 2, 2, 2),
    (1, 1, 1, 2), (2, 1, 1, 1), (1, 2, 1, 1), (2, 2, 1, 1), (1, 2, 2, 2), (2, 1, 1, 2),
    (4, 1, 1, 2), (1, 4, 1, 2), (4, 2, 1, 1), (1, 1, 1, 8),
)  # fmt: skip
"""tp, pp, vpp, dp; the first two calibrate: compute alone, and all exchanges at once."""

LIMIT = """set -e
ip link set lo up
tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 100ms
exec "$@"
"""


def name_of(layout: tuple[int, ...]) -> str:
    return "tp{}-pp{}-vpp{}-dp{}".format(*layout)


def run(folder: Path, rate: str, only: list[str], steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for layout in LAYOUTS:
        name = name_of(layout)
        if (only and name not in only) or (folder / name).exists():
            continue
        tp, pp, vpp, dp = layout
        recipe = folder / f"{name}.toml"
        recipe.write_text(RECIPE.format(tp=tp, pp=pp, vpp=vpp, dp=dp, steps=steps))
        command = [sys.executable, "-m", "msctl", "train", str(recipe), "--run",
                   str(folder / name), "-q"]  # fmt: skip
        if rate:
            limited = LIMIT.format(rate=rate)
            command = ["unshare", "--net", "bash", "-c", limited, "limit", *command]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        print(name, done.returncode, done.stderr[-300:] if done.returncode else "", flush=True)


def score(folder: Path, rate: str) -> None:
    """Calibrate on two layouts, predict the others, print how far off."""
    from engine.plan.adapt import adapt
    from engine.plan.profiles import fitted
    from engine.plan.runs import case_of_run, this_machine
    from engine.plan.validate import predict

    start = this_machine(8, cores=len(os.sched_getaffinity(0)))
    if rate:
        wire = replace(start.intra, bytes_per_s=bits(rate) / 8, shared=True)
        start = replace(start, intra=wire, inter=wire)
    learn = folder / "calibration"
    shutil.rmtree(learn, ignore_errors=True)
    for layout in LAYOUTS[:2]:
        shutil.copytree(folder / name_of(layout), learn / name_of(layout))
    found = adapt(learn, folder / "cluster.toml", start)
    errors = []
    print(f"{'layout':22s} {'measured':>9s} {'predicted':>9s}  error")
    for layout in LAYOUTS:
        case = case_of_run(folder / name_of(layout), fitted(), found.cluster)
        if case is None:
            continue
        seconds = predict(case)[0]
        error = seconds / case.measured_s - 1
        learnt = layout in LAYOUTS[:2]
        errors += [] if learnt else [abs(error)]
        print(f"{name_of(layout):22s} {case.measured_s:8.3f}s {seconds:8.3f}s {100 * error:+6.1f} %"
              f"{' (calibration)' if learnt else ''}")  # fmt: skip
    print(f"mean error over {len(errors)} layouts: {100 * sum(errors) / len(errors):.1f} %")


def bits(rate: str) -> float:
    """`400mbit`, `1gbit` in bits per second, as tc reads them."""
    for unit, size in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if rate.endswith(unit):
            return float(rate[: -len(unit)]) * size
    raise SystemExit(f"--rate {rate}: give a number and gbit, mbit or kbit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", default="")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    if given.what == "run":
        run(given.folder, given.rate, given.only, given.steps)
    else:
        score(given.folder, given.rate)


if __name__ == "__main__":
    main()
