"""Every layout of up to eight ranks against the plain model: worst difference of losses and norms.

    python -m bench.equality [--precision fp64|fp32] [--out FILE] [--most N]

tp, pp, vpp and dp from 1, 2, 4; serial and parallel block; GPT and Llama; sequence parallelism on
and off; ZeRO 1 and 2; ten steps each. Cases of one number of ranks share a started world. Lines are
appended to FILE, and what is there already is not run again.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

from bench.case import recipe_of, reference, worst
from bench.ranks import World
from engine.schedule.build import build
from engine.spec.shape import legal

LIMIT = {"fp64": 1e-10, "fp32": 1e-5}
_AT_ONCE = 8


def layouts() -> list[dict[str, Any]]:
    """All layouts that divide, without those that differ in nothing."""
    found = []
    for tp, pp, vpp, dp in itertools.product((1, 2, 4), repeat=4):
        if tp * pp * dp > 8 or (vpp > 1 and pp == 1 and dp == 1):
            continue
        for sequence, zero in itertools.product((True, False), (1, 2)):
            if (tp == 1 and not sequence) or (dp == 1 and zero == 1):
                continue
            found.append(
                {"tp": tp, "pp": pp, "vpp": vpp, "dp": dp, "sequence_parallel": sequence,
                 "zero": zero}
            )  # fmt: skip
    return found


def cases(precision: str) -> list[dict[str, Any]]:
    """Layouts times models, fewest ranks first."""
    made = []
    for layout in layouts():
        for shape, block in itertools.product(("gpt", "llama"), ("serial", "parallel")):
            case = {"layout": layout, "shape": shape, "block": block, "precision": precision}
            recipe = recipe_of(case)
            count = recipe.batch.microbatches(recipe.layout)
            kind = "interleaved" if layout["vpp"] > 1 else "1f1b"
            if count and legal(kind, layout["pp"], layout["vpp"], count) is None:
                build(kind, layout["pp"], layout["vpp"], count)
                made.append(case)
    return sorted(made, key=ranks_of)


def ranks_of(case: dict[str, Any]) -> int:
    """Ranks that a case needs."""
    layout = case["layout"]
    return layout["tp"] * layout["pp"] * layout["dp"]


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--precision", choices=tuple(LIMIT), default="fp64")
    ap.add_argument("--out", type=Path, default=Path("equality.jsonl"))
    ap.add_argument("--most", type=int, default=10**6)
    a = ap.parse_args()
    done = {}
    if a.out.exists():
        rows = [json.loads(line) for line in a.out.read_text().splitlines()]
        done = {json.dumps(row["case"], sort_keys=True): row["error"] for row in rows}
    wanted = cases(a.precision)[: a.most]
    todo = [c for c in wanted if json.dumps(c, sort_keys=True) not in done]
    print(f"{len(wanted)} cases, {len(todo)} to run", flush=True)
    world = World()
    with a.out.open("a") as out:
        for ranks, same in itertools.groupby(todo, key=ranks_of):
            group = list(same)
            for first in range(0, len(group), _AT_ONCE):
                part = group[first : first + _AT_ONCE]
                start = time.monotonic()
                results = world.run("bench.case:train_all", ranks, part, deadline_s=600)
                for index, case in enumerate(part):
                    error = worst(reference(case), results[0][index])
                    assert all(r[index] == results[0][index] for r in results), case
                    done[json.dumps(case, sort_keys=True)] = error
                    out.write(json.dumps({"case": case, "error": error}) + "\n")
                out.flush()
                print(f"{ranks} ranks, {len(part)} cases, {time.monotonic() - start:.1f} s, "
                      f"worst so far {max(done.values()):.2e}", flush=True)  # fmt: skip
    world.close()
    errors = [done[json.dumps(c, sort_keys=True)] for c in wanted]
    bad = sum(error > LIMIT[a.precision] for error in errors)
    print(f"{len(errors)} cases in {a.precision}: worst {max(errors):.2e}, {bad} beyond the limit "
          f"{LIMIT[a.precision]:g}")  # fmt: skip


if __name__ == "__main__":
    main()
