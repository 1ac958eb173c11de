"""Every layout of up to eight ranks against the plain model, and against itself after a stop.

    nice -n 10 python -m bench.equality [--precision fp64|fp32] [--out FILE] [--most N]

tp, pp, vpp and dp from 1, 2, 4, all that divide; serial and parallel block; GPT and Llama; sequence
parallelism on and off; ZeRO 1 and 2; ten steps each. For every case:

    plain   losses and gradient norms against the plain single-process model
    again   stopped after 1 to 9 steps and continued: must be the same bits
    moved   continued from what another layout saved, against the plain model

Cases of one number of ranks share a world, one world at a time. Lines are appended to FILE, and
what is there is not run again. A table by layout is printed at the end.
"""

import argparse
import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from bench.case import STEPS, recipe_of, reference, worst
from bench.ranks import World
from engine.spec.shape import legal

LIMIT = {"fp64": 1e-10, "fp32": 1e-5}
_AT_ONCE = 8

Case = dict[str, Any]
Row = dict[str, Any]
"""case, plain and moved (errors; moved null if nothing was there to load), again (same bits)."""


def layouts() -> list[Case]:
    """All layouts, without those that differ in nothing."""
    found = []
    for tp, pp, vpp, dp in itertools.product((1, 2, 4), repeat=4):
        if tp * pp * dp > 8:
            continue
        for sequence, zero in itertools.product((True, False), (1, 2)):
            if (tp == 1 and not sequence) or (dp == 1 and zero == 1):
                continue
            found.append(
                {"tp": tp, "pp": pp, "vpp": vpp, "dp": dp, "sequence_parallel": sequence,
                 "zero": zero}
            )  # fmt: skip
    return found


def cases(precision: str) -> list[Case]:
    """Layouts times models, fewest ranks first."""
    made = []
    for layout in layouts():
        for shape, block in itertools.product(("gpt", "llama"), ("serial", "parallel")):
            case = {"layout": layout, "shape": shape, "block": block, "precision": precision}
            recipe = recipe_of(case)
            count = recipe.batch.microbatches(recipe.layout)
            kind = "interleaved" if layout["vpp"] > 1 else "1f1b"
            assert legal(kind, layout["pp"], layout["vpp"], count) is None, case
            made.append(case)
    return sorted(made, key=ranks_of)


def ranks_of(case: Case) -> int:
    """Ranks that a case needs."""
    layout = case["layout"]
    return int(layout["tp"] * layout["pp"] * layout["dp"])


def key_of(case: Case) -> str:
    """A case as text."""
    return json.dumps(case, sort_keys=True)


def plan(wanted: list[Case], folder: Path) -> dict[str, Case]:
    """Where each case saves, after how many steps, and what it loads of another layout."""
    last: dict[str, list[Any]] = {}
    planned = {}
    for number, case in enumerate(wanted):
        model = key_of(case | {"layout": recipe_of(case).model.layers})
        save = [str(folder / f"case-{number:04d}"), 1 + number % (STEPS - 1)]
        planned[key_of(case)] = {"save": save, "load": last.get(model)}
        last[model] = save
    return planned


def run(world: World, part: list[Case], planned: dict[str, Case]) -> list[Row]:
    """Some cases of one number of ranks."""
    given, saved = [], set()
    for case in part:
        more = dict(planned[key_of(case)])
        place = more["load"] and more["load"][0]
        if place and place not in saved and not Path(place).exists():
            more["load"] = None  # saved by an earlier invocation and gone since
        saved.add(more["save"][0])
        given.append(case | more)
    results = world.run("bench.case:train_and_resume", ranks_of(part[0]), given, deadline_s=900)
    rows = []
    for index, case in enumerate(part):
        found = results[0][index]
        assert all(r[index] == found for r in results), f"ranks disagree: {case}"
        wanted, more = reference(case), given[index]
        moved = more["load"] and worst(wanted[more["load"][1] :], found["moved"])
        again = found["again"] == found["steps"][more["save"][1] :]
        plain = worst(wanted, found["steps"])
        rows.append({"case": case, "plain": plain, "again": again, "moved": moved})
    return rows


def show(rows: list[Row], precision: str) -> None:
    """Worst of each layout over its models, then of all."""
    by_layout = itertools.groupby(rows, key=lambda row: key_of(row["case"]["layout"]))
    print("tp\tpp\tvpp\tdp\tSP\tZeRO\tcases\tplain\tmoved\tstop and go")
    for text, same in by_layout:
        group, layout = list(same), json.loads(text)
        moved = max((row["moved"] or 0.0 for row in group), default=0.0)
        bits = "same bits" if all(row["again"] for row in group) else "DIFFERS"
        print(
            layout["tp"], layout["pp"], layout["vpp"], layout["dp"],
            "on" if layout["sequence_parallel"] else "off", layout["zero"], len(group),
            f"{max(row['plain'] for row in group):.1e}", f"{moved:.1e}", bits, sep="\t",
        )  # fmt: skip
    limit = LIMIT[precision]
    errors = [error for row in rows for error in (row["plain"], row["moved"] or 0.0)]
    print(
        f"{len(rows)} cases in {precision}: worst {max(row['plain'] for row in rows):.2e}, after a "
        f"move {max(row['moved'] or 0.0 for row in rows):.2e}; {sum(e > limit for e in errors)} "
        f"beyond {limit:g}; {sum(not row['again'] for row in rows)} not bitwise after a stop"
    )


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--precision", choices=tuple(LIMIT), default="fp64")
    ap.add_argument("--out", type=Path, default=Path("equality.jsonl"))
    ap.add_argument("--most", type=int, default=10**6)
    a = ap.parse_args()
    rows = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []
    done = {key_of(row["case"]): row for row in rows}
    wanted = cases(a.precision)[: a.most]
    todo = [case for case in wanted if key_of(case) not in done]
    print(f"{len(wanted)} cases, {len(todo)} to run", flush=True)
    torch.set_num_threads(1)
    world = World()
    folder = Path(f"{a.out}.ckpt")  # kept until all is done: a later invocation goes on with it
    with a.out.open("a") as out:
        planned = plan(wanted, folder)
        for ranks, same in itertools.groupby(todo, key=ranks_of):
            group = list(same)
            for first in range(0, len(group), _AT_ONCE):
                start = time.monotonic()
                for row in run(world, group[first : first + _AT_ONCE], planned):
                    done[key_of(row["case"])] = row
                    out.write(json.dumps(row) + "\n")
                out.flush()
                print(f"{ranks} ranks, {first + _AT_ONCE} of {len(group)} cases, "
                      f"{time.monotonic() - start:.1f} s", flush=True)  # fmt: skip
    world.close()
    shutil.rmtree(folder, ignore_errors=True)
    show([done[key_of(case)] for case in wanted], a.precision)


if __name__ == "__main__":
    main()
