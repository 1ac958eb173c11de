"""Fit the shipped constants of `engine/plan` on a table of public runs.

    python bench/plan/fit.py TABLE.csv [--write] [--rounds N] [--refreshes N]
    python bench/plan/fit.py TABLE.csv --without GROUP ... >> LEFT.jsonl
    python bench/plan/fit.py TABLE.csv --without fold:K ... >> LEFT.jsonl
    python bench/plan/fit.py TABLE.csv --spreads LEFT.jsonl [--write]

Only rows of permissively licensed or cited sources belong in TABLE. The first form replaces
engine/plan/fitted.json with --write. The second fits anew, from the same start, without a source
(or one tenth of all rows) and prints the errors of the rows left out, one JSON line each. The
third reads those lines, says how far off unseen rows are, and writes the spread of every system.
"""

import argparse
import json
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from prior import KNOBS, START  # noqa: E402

from engine.plan.calibrate import (  # noqa: E402
    errors,
    fit,
    get,
    ladder_points,
    points_of,
    put,
    refresh,
)  # fmt: skip
from engine.plan.profiles import fitted  # noqa: E402
from engine.plan.rows import read_rows  # noqa: E402
from engine.plan.search import Z80  # noqa: E402

FOLDS = 10
FITTED = ROOT / "engine/plan/fitted.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--refreshes", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="go on from the shipped constants")
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--spreads", type=Path)
    given = parser.parse_args()
    if given.spreads:
        spreads(given.spreads, keep=given.write)
        return
    points = all_points(given.table, go_on() if given.warm or given.without else START)
    for name in given.without:
        left_out(points, given, name)
    if not given.without:
        whole(points, given)


def whole(points, given: argparse.Namespace) -> None:
    """Fit on everything."""
    constants, points = fitted_on(points, given)
    base = errors(points, constants)
    names = np.array([p.case.group for p in points])
    for name in sorted(set(names)):
        print(f"{name:20s} {sum(names == name):4d}  {mape(base[names == name]):6.3f}")
    print(f"mean over groups {np.mean([mape(base[names == n]) for n in set(names)]):.4f}")
    if given.write:
        write(with_unseen(with_old_spreads(constants)))


def all_points(table: Path, constants):
    rows = read_rows(table)
    rungs = [int(r["id"].rsplit("-", 1)[1]) - 1 for r in rows if r["id"].startswith("ms-t3-")]
    return points_of(rows, constants) + ladder_points(constants, rungs)


def fitted_on(points, given):
    """Constants fitted from the start on some points, and the points under them."""
    constants, began = go_on() if given.warm else START, time.time()
    for turn in range(given.refreshes):
        constants = fit(points, constants, KNOBS, rounds=given.rounds, prior=START).constants
        points = refresh(points, constants)
        print(f"refresh {turn}: {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    return constants, points


def go_on():
    """The shipped values of the unknowns in the systems of START."""
    shipped = fitted()
    return put(START, KNOBS, [get(shipped, knob) for knob in KNOBS])


def left_out(points, given: argparse.Namespace, name: str) -> None:
    """Fit anew without a source or a tenth of the rows; errors of what was left out."""
    kept = [p for p in points if not is_out(p, name)]
    constants = fit(kept, START, KNOBS, rounds=4 * given.rounds).constants
    out = refresh([p for p in points if is_out(p, name)], constants)
    for point, error in zip(out, errors(out, constants), strict=True):
        line = {"without": name, "id": point.case.id, "group": point.case.group,
                "system": point.case.job.profile.name, "log_error": float(error)}  # fmt: skip
        print(json.dumps(line), flush=True)


def is_out(point, name: str) -> bool:
    if name.startswith("fold:"):
        return zlib.crc32(point.case.id.encode()) % FOLDS == int(name[5:])
    return point.case.group == name


def spreads(left: Path, *, keep: bool) -> None:
    """Errors of left-out rows, and the spread of each system's log error from them."""
    lines = [json.loads(line) for line in left.read_text().splitlines()]
    groups = defaultdict(list)
    folds = [line for line in lines if line["without"].startswith("fold:")]
    for line in lines:
        if not line["without"].startswith("fold:"):
            groups[line["group"]].append(line["log_error"])
    for name, values in sorted(groups.items()):
        print(f"{name:20s} {len(values):4d}  left out {mape(values):.3f}")
    print(f"mean over sources, each left out: {np.mean([mape(v) for v in groups.values()]):.4f}")
    held = np.array([line["log_error"] for line in folds])
    by_group = defaultdict(list)
    for line in folds:
        by_group[line["group"]].append(line["log_error"])
    print(f"a tenth of the rows left out: {mape(held):.4f} over rows, "
          f"{np.mean([mape(v) for v in by_group.values()]):.4f} over sources")  # fmt: skip
    wide = quantile(np.concatenate([np.array(v) for v in groups.values()]))
    constants, profiles = fitted(), {}
    every, inside = quantile(held), 0
    for name, profile in constants.profiles.items():
        mine = np.array([line["log_error"] for line in folds if line["system"] == name])
        n = len(mine)
        spread = (n * quantile(mine) + 4 * every) / (n + 4) if n else wide
        inside += int(np.sum(np.abs(mine) <= Z80 * spread)) if n else 0
        profiles[name] = msgspec.structs.replace(profile, log_error=spread)
    print("spreads:", {k: round(p.log_error, 3) for k, p in profiles.items()}, f"unseen {wide:.3f}")
    print(f"of the rows left out, {inside / max(1, len(held)):.3f} lie between P10 and P90")
    if keep:
        write(msgspec.structs.replace(constants, profiles=profiles, log_error=wide))


def quantile(values) -> float:
    """Spread of a normal law whose P10 and P90 hold four fifths of the values."""
    return float(np.quantile(np.abs(values), 0.8) / Z80)


def mape(log_errors) -> float:
    return float(np.mean(np.abs(np.exp(log_errors) - 1)))


def with_unseen(constants):
    """Systems that no row of the table ran: the mean slope of those most like them."""
    likes = {"megatron-flash": ("megatron-2021", "megatron-deepspeed", "fsdp", "internevo"),
             "msctl": ("megascale", "nemo", "megatron-core")}  # fmt: skip
    profiles = dict(constants.profiles)
    for name, others in likes.items():
        slope = float(np.exp(np.mean([np.log(profiles[o].slope) for o in others])))
        profiles[name] = msgspec.structs.replace(profiles[name], slope=slope)
    return msgspec.structs.replace(constants, profiles=profiles)


def with_old_spreads(constants):
    """The spreads that --spreads wrote last."""
    old = fitted()
    profiles = {
        name: msgspec.structs.replace(profile, log_error=old.profiles[name].log_error)
        for name, profile in constants.profiles.items()
    }
    return msgspec.structs.replace(constants, profiles=profiles, log_error=old.log_error)


def write(constants) -> None:
    """Four digits: more would pretend."""
    text = msgspec.json.format(msgspec.json.encode(rounded(constants)), indent=1) + b"\n"
    FITTED.write_bytes(text)


def rounded(constants):
    def short(value):
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        return value

    return msgspec.convert(short(msgspec.to_builtins(constants)), type(constants))


if __name__ == "__main__":
    main()
