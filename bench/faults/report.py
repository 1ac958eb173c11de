"""Add measured rows to the record and write the page's tables, each between two marks, from it.

    python -m bench.faults.report docs/explanation/fault-campaign.md [--campaign build/faults]
        [--torchrun build/torchrun] [--healthy build/healthy] [--driver-kills build/driver-kills]
        [--scale build/scale]

Folders are where benches left rows that the record (`bench/faults/records`) does not have yet. A
table without any rows stays as it is; so does all that people wrote.
"""

import argparse
import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path

import torch

from bench.faults import healthy, torchrun
from bench.faults.campaign import FAULTS, HARMLESS
from bench.faults.rows import read_rows, record

MATRIX = {
    "kill": 1, "crash": 1, "segv": 1, "exit0": 1, "exit": 1, "exception": 1, "stop": 2, "hang": 2,
    "gil": 2, "hang-start": 3, "slow": 4, "link-slow": 4, "link-slow-both": 4, "node-kill": 5,
    "node-stop": 5, "link-cut": 5, "link-flap": 6, "redis-partition": 7, "redis-kill": 8,
    "keeper-kill": 8, "redis-stop": 9, "driver-kill": 10, "two-drivers": 11, "executor-kill": 12,
    "bad-node": 13, "kill-again": 14, "two-nodes": 15, "bug": 16, "disk-full": 17,
    "torn-checkpoint": 18, "storage-hang": 19, "storage-slow": 19, "clock": 20,
    "nan": 21, "flip": 22, "oom": 23, "oom-kill": 23, "log-flood": 24, "nvml-wedged": 25,
    "bad-spare": 26, "stale-rank": 27,
}  # fmt: skip
"""Fault -> row of the matrix of 27 that the project works to; the others are two at once."""
_COLUMNS = ("row", "fault", "runs", "passed", "noticed after", "located", "first new step after",
            "steps lost", "losses equal")  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench.faults.report")
    parser.add_argument("page", type=Path)
    for name in TABLES:
        parser.add_argument(f"--{name}", type=Path)
    args = parser.parse_args()
    text = args.page.read_text()
    for name, make in TABLES.items():
        folder = getattr(args, name.replace("-", "_"))
        rows = record(name, read_rows(folder) if folder else ())
        if rows:
            text = put(text, name, make(rows))
    args.page.write_text(text)


def put(text: str, name: str, body: str) -> str:
    """The page with another body between the marks of this name. ValueError if it has none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the page has no pair of marks {begin} and {end}")
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n{body.strip()}\n{end}{rest.partition(end)[2]}"


def _machine(rows: list[dict]) -> str:
    found = sorted(row["load"] for row in rows if "load" in row) or [0.0]
    commits = list(dict.fromkeys(str(row["commit"]) for row in rows if "commit" in row))
    return (
        f"Machine: {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}; load average "
        f"{found[0]:.0f} to {found[-1]:.0f}, {statistics.median(found):.0f} in the middle. "
        f"Source: {', '.join(commits)}.\n\n"
    )


def campaign(rows: list[dict]) -> str:
    """A line per fault: how often it was noticed, located, mended, how fast."""
    table = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(fault, rows) for fault in FAULTS)]
    named = [r["located"] for r in rows if "located" in r]
    total = (
        f"\nAll in all {len(rows)} faults: {sum(bool(r['passed']) for r in rows)} passed, losses "
        f"equal in {sum(bool(r['bitwise']) for r in rows)}, the right one named in "
        f"{sum(map(bool, named))} of {len(named)}.\n"
    )
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return _machine(rows) + lines + "\n" + total


def _row(fault: str, rows: list[dict]) -> tuple[str, ...]:
    mine = [row for row in rows if row["fault"] == fault]
    head = (str(MATRIX.get(fault, "two")), fault)
    if not mine:
        return (*head, "0", *("not run",) * 6)
    passed = f"{sum(bool(r['passed']) for r in mine)} of {len(mine)}"
    equal = f"{sum(bool(r['bitwise']) for r in mine)} of {len(mine)}"
    if fault in HARMLESS:
        restarts = sum(r["restarts"] for r in mine)
        quiet = "no restart" if not restarts else f"{restarts} restarts"
        return (*head, str(len(mine)), passed, "-", "-", quiet, "-", equal)
    located = f"{sum(bool(r.get('located')) for r in mine)} of {len(mine)}"
    return (
        *head, str(len(mine)), passed, _times(r.get("detected_s") for r in mine), located,
        _times(r.get("recovered_s") for r in mine),
        str(max((r.get("steps_lost", 0) for r in mine), default=0)), equal,
    )  # fmt: skip


def _times(values: Iterable[float | None]) -> str:
    """Median and worst, in seconds."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    return f"{statistics.median(found):.1f} s (worst {max(found):.1f})"


def beside(rows: list[dict]) -> str:
    """Our times and torchrun's."""
    return _machine(rows) + torchrun.table(rows)


def stretches(rows: list[dict]) -> str:
    """How long nothing happened and nothing was said."""
    return _machine(rows) + healthy.table(rows)


def kills(rows: list[dict]) -> str:
    """What came of the jobs whose drivers were killed."""
    lines = ["| kills | before the first step | steps | processes of a rank at once | starts of "
             "ranks | losses equal |", "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    lines += [
        f"| {r['kills']} | {r.get('kills_before_first_step', '-')} | {r['steps']} "
        f"| {r['processes_of_a_rank_at_once']} | {r['starts_of_ranks']} "
        f"| {'yes' if r['bitwise'] else 'no'} |"
        for r in rows
    ]
    total = f"\n\nKills in all: {sum(r['kills'] for r in rows)}."
    return _machine(rows) + "\n".join(lines) + total


def sizes(rows: list[dict]) -> str:
    """What the driver of a large job costs, and how long it takes to mend it."""
    lines = ["| nodes | ranks | driver, Redis: cores | driver's memory | a beat is read after | "
             "rank exits | node falls silent | rank is stopped |", "| --- " * 8 + "|"]  # fmt: skip
    for r in sorted(rows, key=lambda r: r["nodes"]):
        mends = (
            f"{r[f'{word}_noticed_s']:.1f}, {r[f'{word}_started_s']:.1f}"
            + ("" if r[f"{word}_right"] else ", not named")
            for word in ("exit", "silence", "hang")
        )
        lines.append(
            f"| {r['nodes']:,} | {r['ranks']:,} | {r['driver_cores']:.2f}, {r['redis_cores']:.2f} "
            f"| {r['driver_mib']:.0f} MiB | {r['beat_age_s']:.2f} s (worst "
            f"{r['beat_age_worst_s']:.2f}) | {' | '.join(mends)} |"
        )
    return _machine(rows) + "\n".join(lines)


TABLES = {"campaign": campaign, "torchrun": beside, "healthy": stretches, "driver-kills": kills,
          "scale": sizes}  # fmt: skip
"""Name of a record, of its option and of its marks in the page -> what makes its table."""

if __name__ == "__main__":
    main()
