#!/usr/bin/env python3
"""Peak memory of the commands that rewrite a checkpoint, and the speed of `verify` on a cold one.

    python limits.py --dir SCRATCH [--layers 4] [--hidden 1024] [--vocab 65536]

A Llama shape is trained for a step, so that a checkpoint with moments lies there. Each command then
runs in a process of its own, whose peak of resident memory is taken from the kernel; bounds: twice
the largest tensor and 200 MiB (export, import), the `--memory` given and 200 MiB (reshard, of a
checkpoint many times as large). What the interpreter and torch take alone is shown beside it.
Afterwards all files are read plainly and by `verify`, each in turn with an empty page cache (root),
the same number of threads. Exit 1 if a bound is broken or `verify` is slower than 0.8 of the read.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.ckpt.catalog import latest
from engine.ckpt.verify import verify

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
BLOCK, THREADS, ROUNDS = 4 * MIB, 4, 3
SPARE = 200 * MIB
RECIPE = """name = "limits"
[model]
layers = {layers}
hidden = {hidden}
heads = 16
vocab = {vocab}
seq = 64
norm = "rmsnorm"
activation = "swiglu"
position = "rotary"
bias = false
tied = false
[batch]
global_batch = 1
[data]
format = "synthetic"
[train]
steps = 1
eval_batches = 0
device = "cpu"
[checkpoint]
two_stage = false
"""


def peak_of(words: list[str]) -> int:
    """Run a command to its end; the most bytes of memory it had, with those of its libraries."""
    with open(os.devnull, "wb") as nothing:
        child = subprocess.Popen(words, stdout=nothing, cwd=ROOT)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {child.returncode}")
    return used.ru_maxrss * 1024


def memory(run: Path, place: Path, largest: int) -> bool:
    """A row for each command; whether all keep their bounds."""
    python = [sys.executable, "-c"]
    alone = peak_of([*python, "import torch.distributed.checkpoint"])
    print(f"interpreter and torch alone: {alone / MIB:.0f} MiB")
    print(f"largest tensor: {largest / MIB:.0f} MiB")
    print("\n| command | peak, MiB | bound, MiB |\n| --- | --- | --- |")
    limit = largest // 4
    rows = [
        (["export", str(run), "--out", str(place / "hf")], 2 * largest),
        (["import", str(place / "hf"), "--out", str(place / "from-hf")], 2 * largest),
        (["export", str(run), "--out", str(place / "dcp"), "--to", "dcp"], 2 * largest),
        (["import", str(place / "dcp"), "--out", str(place / "from-dcp")], 2 * largest),
        (["reshard", str(run), "--out", str(place / "other"), "--layout", "tp=2", "--layout",
          "dp=2", "--memory", str(limit)], limit),
    ]  # fmt: skip
    good = True
    for words, room in rows:
        peak = peak_of([sys.executable, "-m", "msctl", "ckpt", *words, "--quiet"])
        good &= peak <= room + SPARE
        shown = " ".join(word for word in words if not word.startswith(("/", "-")))
        print(f"| {shown} | {peak / MIB:.0f} | {(room + SPARE) / MIB:.0f} |", flush=True)
    return good


def cold() -> None:
    """An empty page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def read_plainly(folder: Path) -> int:
    """Every file of a checkpoint, in blocks, by some threads; returns the bytes."""
    blocks = [
        (path, at) for path in sorted(folder.iterdir())
        for at in range(0, path.stat().st_size, BLOCK)
    ]  # fmt: skip

    def read(block: tuple[Path, int]) -> int:
        with block[0].open("rb", buffering=0) as file:
            return os.preadv(file.fileno(), [bytearray(BLOCK)], block[1])

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(read, blocks))


def speed(folder: Path) -> bool:
    """Cold reads in turn; whether `verify` keeps up."""
    shares = []
    for _ in range(ROUNDS):
        cold()
        begin = time.perf_counter()
        size = read_plainly(folder)
        plain_s = time.perf_counter() - begin
        cold()
        begin = time.perf_counter()
        assert verify(folder, threads=THREADS).ok, folder
        own_s = time.perf_counter() - begin
        shares.append(plain_s / own_s)
        print(f"cold, {size / MIB:.0f} MiB: read {size / MIB / plain_s:.0f} MiB/s, verified "
              f"{size / MIB / own_s:.0f} MiB/s", flush=True)  # fmt: skip
    middle = statistics.median(shares)
    print(f"verify reads at {middle:.2f} of the plain speed")
    return middle >= 0.8


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--dir", type=Path, required=True)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--hidden", type=int, default=1024)
    ap.add_argument("--vocab", type=int, default=65536)
    a = ap.parse_args()
    place = a.dir.resolve() / "limits"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        recipe = place / "recipe.toml"
        recipe.write_text(RECIPE.format(layers=a.layers, hidden=a.hidden, vocab=a.vocab))
        peak_of([sys.executable, "-m", "msctl", "train", str(recipe), "--run", str(place / "run")])
        newest = latest(place / "run" / "ckpt")
        assert isinstance(newest, Path), "no checkpoint was saved"
        good = memory(place / "run", place, a.vocab * a.hidden * 4)
        good &= speed(newest)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
