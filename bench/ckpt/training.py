"""What a save every ten steps costs a training run: two ranks, 2 GiB of state, in one run.

    python training.py [--pairs 3] [--layers 14] [--dir SCRATCH]

The run saves every twenty steps, so that ten steps behind a save (its snapshot, then the flusher's
checksums and writes) alternate with ten steps without any. A step lasts from its start to the start
of the next, as the events say. Two ranks keep two cores busy: nothing of the flusher is for free.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 10
RECIPE = """name = "save-every-ten"
[model]
layers = {layers}
hidden = 1024
heads = 16
vocab = 256
seq = 256
position = "rotary"
[layout]
dp = 2
[batch]
global_batch = 4
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
every = {every}
keep = 2
at_end = false
[monitor]
tensorboard = false
step_deadline_s = 600.0
"""


def starts(run: Path) -> dict[int, float]:
    """Step -> when the slower rank began it, in seconds."""
    found: dict[int, float] = {}
    for file in (run / "events").glob("rank-*.jsonl"):
        seen: set[int] = set()
        for line in file.open():
            event = json.loads(line)
            step = event["step"]
            if event["kind"] == "span" and step > 0 and step not in seen:
                seen.add(step)
                found[step] = max(found.get(step, 0.0), event["t_ns"] / 1e9)
    return found


def windows(begin: dict[int, float], pairs: int) -> list[tuple[float, float]]:
    """(mean step behind a save, mean step without one) of each pair, in seconds."""
    found = []
    for pair in range(pairs):
        saved = 2 * WINDOW * (pair + 1)  # the step that ends with a save
        marks = [begin[saved + at] for at in (0, WINDOW, 2 * WINDOW)]
        found.append(((marks[1] - marks[0]) / WINDOW, (marks[2] - marks[1]) / WINDOW))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="save-every-ten-", dir=given.dir))
    try:
        steps = 2 * WINDOW * (given.pairs + 1) + 1
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE.format(layers=given.layers, steps=steps, every=2 * WINDOW))
        command = [sys.executable, "-m", "msctl", "train", str(recipe), "-q"]
        subprocess.run([*command, "--run", str(folder / "run")], cwd=ROOT, check=True)
        listed = [sys.executable, "-m", "msctl", "ckpt", "list", str(folder / "run/ckpt"), "--json"]
        done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
        sizes = [row["bytes"] for row in json.loads(done.stdout)]
        found = windows(starts(folder / "run"), given.pairs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(sizes)} checkpoints of {max(sizes) / 2**30:.2f} GiB")
    for saved, bare in found:
        print(f"step with a save every ten {saved:.3f} s, without {bare:.3f} s: "
              f"{100 * (saved / bare - 1):+.2f} %")  # fmt: skip
    print(f"median {100 * (statistics.median(s / b for s, b in found) - 1):+.2f} %")


if __name__ == "__main__":
    main()
