"""A healthy stretch: eight ranks on four nodes, no fault, nothing may be said.

    python -m bench.faults.healthy --out build/healthy --minutes 60
    python -m bench.faults.healthy --out build/healthy --minutes 60 --busy 4

Nodes are network namespaces joined through Redis, a spare stands by. Counted are incidents of any
kind (alarms), restarts, nodes that were ever under suspicion, and steps. With `--busy N` as many
processes compute all the while and leave off now and then, so that the machine is busy unevenly.
Stretches add up: each call appends a row. Needs root.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.faults.campaign import NODES, RECIPE, SPARES, Job
from bench.faults.hit import kill
from bench.faults.net import Network
from bench.faults.rows import append_rows, read_rows

_START_S, _LOOK_S = 300.0, 0.25
_BURN = "while True: pow(3, 1000000, 7919)"


@contextlib.contextmanager
def busy(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that compute; the caller stops and wakes them as it likes."""
    found = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def stretch(out: Path, minutes: float, others: int) -> dict:
    """Watch one job for so long."""
    folder = (out / f"job-{int(time.time())}").resolve()
    row: dict = {"minutes": minutes, "busy": others, "load_before": os.getloadavg()[0]}
    suspects: set[str] = set()
    loads: list[float] = []
    rng = random.Random(1)
    with Network(NODES + SPARES), busy(others) as burning:
        job = Job(folder, [], recipe=RECIPE.replace("steps = 20000", "steps = 10000000"))
        try:
            if not job.wait(2, _START_S):
                return row | {"wrong": "no step came"}
            begin, first = time.monotonic(), job.step()
            while time.monotonic() < begin + 60 * minutes and job.driver.poll() is None:
                time.sleep(_LOOK_S)
                view = job.view
                for node in view.nodes if view else ():
                    if node.state in ("silent", "lost", "evicted"):
                        suspects.add(node.node)
                if rng.random() < _LOOK_S / 20:  # each turn lasts about 20 s
                    loads.append(os.getloadavg()[0])
                    for process in burning:
                        kill(process.pid, rng.choice((signal.SIGSTOP, signal.SIGCONT)))
            row |= {"seconds": round(time.monotonic() - begin), "steps": job.step() - first,
                    "driver_alive": job.driver.poll() is None}  # fmt: skip
            job.driver.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.driver.wait(120)
        finally:
            job.end()
        found = job.recoveries()
    return row | {
        "alarms": len(found), "restarts": sum(r.decision is not None for r in found),
        "suspects": sorted(suspects), "said": [r.incident.what[:200] for r in found],
        "load": round(max(loads, default=os.getloadavg()[0]), 1),
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """As Markdown: all stretches without and with other programs."""
    lines = ["| other programs | healthy for | steps | load up to | alarms | nodes suspected "
             "| restarts |", "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for others in sorted({row["busy"] for row in rows}):
        mine = [row for row in rows if row["busy"] == others and "steps" in row]
        lines.append(
            f"| {others or 'none of ours'} | {sum(r['seconds'] for r in mine) / 60:.0f} min "
            f"| {sum(r['steps'] for r in mine)} | {max((r['load'] for r in mine), default=0):.0f} "
            f"| {sum(r['alarms'] for r in mine)} | {sum(len(r['suspects']) for r in mine)} "
            f"| {sum(r['restarts'] for r in mine)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.healthy")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--busy", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    row = stretch(args.out, args.minutes, args.busy)
    print(json.dumps(row), flush=True)
    append_rows(args.out, [row])
    print(table(read_rows(args.out)))


if __name__ == "__main__":
    main()
