"""Run the side-by-side benchmarks and write docs/explanation/benchmarks.md.

    python -m tools.bench [--only NAME ...] [--list]

Each entry is a script under bench/ that compares this repository with another system, or an old way
with a new one, in one run. Its output goes into the page as it is, with machine, commit, seconds
and the load at its start. An entry that cannot run here says why.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
_LIMIT_S = 1800
_LINES = 60


class Entry(NamedTuple):
    """One comparison."""

    name: str
    what: str
    command: tuple[str, ...]
    where: str = "."
    settings: str = ""
    """Environment variables of a shell script: `N=2 RATE=100mbit`."""


BENCHES = (
    Entry("overlap", "one dimension at a time behind links of 100 Mbit/s, the simulator beside it",
          ("./overlap_netns.sh",), "bench/overlap", "N=2 RATE=100mbit SCRIPT=./hidden.py"),
    Entry("overlap-3d", "tensor, pipeline and data parallel at once, the simulator beside them",
          ("./overlap_netns.sh",), "bench/overlap", "N=8 RATE=100mbit SCRIPT=./three.py"),
    Entry("schedules", "techniques one after the other, eight CPU ranks",
          ("-m", "msctl", "train", "recipes/tiny.toml", "--ablate", "--steps", "8", "--rounds",
           "2")),
    Entry("start-up", "process groups over TCPStore and Redis",
          ("bench/init/run_gloo.py", "--ranks", "24", "--reps", "4")),
    Entry("storm", "store requests of 2,048 ranks against real servers",
          ("bench/init/run_storm.py", "--sizes", "2048")),
    Entry("checkpoints", "two-stage saves beside DCP and safetensors",
          ("ckpt_bench.py", "--systems",
           "floor_prefault,floor_direct,ours.py:Msctl,dcp_async_process_shm,dcp_save,safetensors",
           "--world", "2", "--gib", "1", "--saves", "4", "--dir", "{scratch}"), "bench/ckpt"),
    Entry("save-every-ten", "training with a save every ten steps beside training without",
          ("training.py", "--pairs", "2", "--dir", "{scratch}"), "bench/ckpt"),
    Entry("data", "one loader a node beside one a rank", ("bench/data/loader.py",)),
    Entry("operators", "reference and native operators", ("bench/ops/bench_ops.py",)),
    Entry("faults", "a rank stopped, killed, slowed, stalled; a verdict on each",
          ("bench/diagnose/own_faults.py", "--runs", "1")),
    Entry("traces", "stragglers in traces, all variants", ("bench/diagnose/score.py", "traces")),
    Entry("traffic", "alarms on NIC series", ("bench/diagnose/traffic.py", "--seeds", "2")),
    Entry("fleet", "12,288 ranks, slow nodes", ("bench/diagnose/fleet.py",)),
)  # fmt: skip
"""Every comparison that needs no input from outside; shell scripts need root and iproute2."""


def run(entry: Entry, scratch: Path) -> list[str]:
    """The section of one entry."""
    words = [word.format(scratch=scratch) for word in entry.command]
    own = dict(pair.split("=") for pair in entry.settings.split())
    starter = [] if entry.settings else [sys.executable]
    prefix = f"PY=python {entry.settings}" if entry.settings else "python"
    shown = " ".join((prefix, *entry.command)).replace("{scratch}", "SCRATCH")
    load = os.getloadavg()[0]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [*starter, *words], cwd=ROOT / entry.where, capture_output=True, text=True,
            timeout=_LIMIT_S, check=False, env=os.environ | {"PY": sys.executable} | own,
        )  # fmt: skip
        text = done.stdout.rstrip() or done.stderr.rstrip()
        ended = "" if done.returncode == 0 else f", exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        text, ended = "", f", stopped after {_LIMIT_S} s"
    seconds = time.perf_counter() - begin
    place = "" if entry.where == "." else f" in `{entry.where}`"
    lines = [line.rstrip().replace(str(scratch), "SCRATCH") for line in text.splitlines()][-_LINES:]
    return [
        f"## {entry.name}", "", f"{entry.what[0].upper()}{entry.what[1:]}: `{shown}`{place}", "",
        f"{seconds:.0f} s, load {load:.1f} at the start{ended}.", "", "```text", *lines, "```", "",
    ]  # fmt: skip


def head() -> list[str]:
    """Title, machine and commit."""
    told = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=False)
    import torch  # only its version

    return [
        "# Benchmarks", "",
        "<!-- Written by `make bench`; edit tools/bench.py, not this page. -->", "",
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, torch "
        f"{torch.__version__}, commit {commit.stdout.strip() or 'unknown'}.", "",
        "Ratios count more than seconds: the load at the start of each run is given, and on a busy "
        "machine all rows",
        "of a run are slow together. Larger campaigns and comparisons that need other programs or "
        "data are in the pages",
        "on [plan](plan-accuracy.md), [diagnose](diagnose-accuracy.md), "
        "[checkpoints](checkpoint-performance.md) and", "[start-up](start-up.md).", "",
    ]  # fmt: skip


def main() -> None:
    """Run what was asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[entry.name for entry in BENCHES])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "bench")
    given = parser.parse_args()
    if given.list:
        for entry in BENCHES:
            print(f"{entry.name:12s} {entry.what}")
        return
    given.scratch.mkdir(parents=True, exist_ok=True)
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() and given.only else ""
    kept = {part.split("\n")[0]: part for part in text.split("\n## ")[1:]}
    sections = head()
    for entry in BENCHES:
        if given.only and entry.name not in given.only:
            if entry.name in kept:
                sections += [f"## {kept[entry.name].rstrip()}", ""]
            continue
        print(f"{entry.name} ...", flush=True)
        sections += run(entry, given.scratch)
    PAGE.write_text("\n".join(sections).rstrip() + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
