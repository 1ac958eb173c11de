"""Row 22 of the matrix, silent corruption: a rank computes one bit wrong, and nothing fails.

Each has a job of its own, with four replicas, so that three can outvote one: in turn pp 2, where
the wrong rank is one of two stages, and tp 2, where it is one of two that share every result. The
job it is compared with looks for nothing.
"""

import contextlib
import json
import os
import random
import subprocess
from pathlib import Path

from bench.faults import campaign
from bench.faults.hit import RANKS, Struck

LAYOUTS = ({"tp": 1, "pp": 2, "dp": 4}, {"tp": 2, "pp": 1, "dp": 4})
EVERY = 4
_FIRST, _MOMENTS = 12, 10


def recipe(layout: dict[str, int], *, every: int) -> str:
    """The campaign's recipe with another layout, which compares replicas every so many steps."""
    text = campaign.RECIPE.replace("[job]\n", f"[job]\nsdc_every = {every}\n")
    for degree, value in layout.items():
        text = text.replace(f"{degree} = 2\n", f"{degree} = {value}\n", 1)
    return text


def flip(out: Path, fault: str, seed: int) -> None:
    """One job in which one rank computes wrong from a random step on; appends its row."""
    rng = random.Random(seed)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    place = out / ("flips-" + "-".join(f"{k}{v}" for k, v in layout.items()))
    folder = place / f"job-{seed}"
    rank, at = rng.randrange(RANKS), _FIRST + rng.randrange(_MOMENTS)
    text = f"{fault}:rank={rank}@step={at}"
    job = campaign.Job(folder, [text], recipe=recipe(layout, every=EVERY))
    try:
        if not job.wait(at, 300.0):
            raise SystemExit(f"the job does not reach step {at}: {folder}/driver.log")
        node = job.node_of(rank)
        when, _ = campaign.strike(job, text)
        job.wait_restart(campaign.LIMIT_S)
        struck = Struck(when, ranks=frozenset({rank}), evicts=node, kinds=("corruption",))
        row = campaign.judge(job, fault, 0, struck, at)
        job.driver.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.driver.wait(120)
    finally:
        job.end()
    mine = campaign.losses(folder)
    same = campaign.reference(place, len(mine), recipe(layout, every=0))
    row |= {"seed": seed, "number": 0, "load": os.getloadavg()[0], "steps": len(mine),
            "bitwise": bool(mine) and mine == campaign.losses(same)[: len(mine)]}  # fmt: skip
    print(json.dumps(row), flush=True)
    campaign.append_rows(out, [row])
