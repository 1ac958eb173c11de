"""Fit the shipped constants of `engine/plan` on a table of public runs.

python bench/plan/fit.py TABLE.csv [--write] [--rounds N]

Only rows of permissively licensed or cited sources belong in TABLE. Prints the error of every group
when fitted and when the group is left out; --write replaces engine/plan/fitted.json.
"""

import argparse
import sys
import time
import zlib
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from prior import KNOBS, START  # noqa: E402

from engine.plan.calibrate import errors, fit, ladder_points, left_out, points_of, refresh  # noqa: E402
from engine.plan.rows import read_rows  # noqa: E402
from engine.plan.search import Z80  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--refreshes", type=int, default=3)
    given = parser.parse_args()
    rows = read_rows(given.table)
    began = time.time()
    rungs = [int(r["id"].rsplit("-", 1)[1]) - 1 for r in rows if r["id"].startswith("ms-t3-")]
    points = points_of(rows, START) + ladder_points(START, rungs)
    constants = START
    for turn in range(given.refreshes):
        found = fit(points, START if turn == 0 else constants, KNOBS, rounds=given.rounds)
        constants = found.constants
        points = refresh(points, constants)
        print(f"refresh {turn}: macro {macro(points, constants):.4f}  {time.time() - began:.0f} s")
    names = sorted({p.case.group for p in points})
    base = errors(points, constants)
    found = found._replace(errors=base)
    everything, outside = [], []
    print(f"{'group':20s} rows  fitted  left out")
    for name in names:
        mine = np.array([p.case.group == name for p in points])
        without = left_out(points, found, START, KNOBS, name)
        own = [p for p in points if p.case.group == name]
        held = errors(own, without)
        inside = np.mean(np.abs(np.exp(base[mine]) - 1))
        beyond = np.mean(np.abs(np.exp(held) - 1))
        everything.append(inside)
        outside.append((name, beyond, held))
        print(f"{name:20s} {mine.sum():4d}  {inside:6.3f}  {beyond:6.3f}")
    print(
        f"{'mean over groups':20s}       {np.mean(everything):6.3f}  "
        f"{np.mean([b for _, b, _ in outside]):6.3f}"
    )
    wide = float(np.quantile(np.abs(np.concatenate([h for *_, h in outside])), 0.8) / Z80)
    print(f"spread of log error with whole groups left out: {wide:.3f}")
    constants = with_unseen(with_spreads(constants, points, found, wide))
    if given.write:
        text = msgspec.json.format(msgspec.json.encode(rounded(constants)), indent=1) + b"\n"
        (ROOT / "engine/plan/fitted.json").write_bytes(text)


def with_unseen(constants):
    """Systems that no row of the table ran: the mean slope of those most like them."""
    likes = {"megatron-flash": ("megatron-2021", "megatron-deepspeed", "fsdp", "internevo"),
             "msctl": ("megascale", "nemo", "megatron-core")}  # fmt: skip
    profiles = dict(constants.profiles)
    for name, others in likes.items():
        slope = float(np.exp(np.mean([np.log(profiles[o].slope) for o in others])))
        profiles[name] = msgspec.structs.replace(profiles[name], slope=slope)
    return msgspec.structs.replace(constants, profiles=profiles)


def with_spreads(constants, points, found, wide):
    """Spread of each system's log error, rows left out in ten folds; `wide` for unseen ones."""
    held = np.zeros(len(points))
    for fold in range(10):
        out = np.array([zlib.crc32(p.case.id.encode()) % 10 == fold for p in points])
        tagged = [
            p._replace(case=p.case._replace(group="out" if o else "in"))
            for p, o in zip(points, out, strict=True)
        ]
        without = left_out(tagged, found, START, KNOBS, "out")
        held[out] = errors([p for p, o in zip(points, out, strict=True) if o], without)
    print(f"rows left out in ten folds: {np.mean(np.abs(np.exp(held) - 1)):.4f} mean over rows")
    every = float(np.quantile(np.abs(held), 0.8) / Z80)
    profiles = {}
    for name, profile in constants.profiles.items():
        mine = np.array([p.case.job.profile.name == name for p in points])
        n = int(mine.sum())
        own = float(np.quantile(np.abs(held[mine]), 0.8) / Z80) if n else wide
        spread = (n * own + 4 * every) / (n + 4) if n else wide
        profiles[name] = msgspec.structs.replace(profile, log_error=spread)
    print("spreads:", {k: round(p.log_error, 3) for k, p in profiles.items()})
    return msgspec.structs.replace(constants, profiles=profiles, log_error=wide)


def macro(points, constants) -> float:
    base = errors(points, constants)
    names = [p.case.group for p in points]
    return float(np.mean([
        np.mean([abs(np.exp(e) - 1) for e, n in zip(base, names, strict=True) if n == name])
        for name in set(names)
    ]))  # fmt: skip


def rounded(constants):
    """Four digits: more would pretend."""

    def short(value):
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        return value

    return msgspec.convert(short(msgspec.to_builtins(constants)), type(constants))


if __name__ == "__main__":
    main()
