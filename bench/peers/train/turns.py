"""Ways of ours to run one layout, step about: the machine's moods fall on all of them alike.

    export N=2 PY=python RATE=100mbit SCRIPT=$PWD/turns.py
    ../../overlap/overlap_netns.sh --case "--pp 2" --case "--pp 2 --vpp 2 --group 4" --rounds 30

A case is arguments of peer_msctl.py. All of them live in the same processes, and each round takes
one step of each. Prints a line a case: its median step, the median over the rounds of its share of
the first case's step in the same round, the quarters of that share, and its last loss.
"""

import argparse
import os
import shlex
import statistics
import time

import torch
from peer_msctl import batches_of, join, parser, recipe_of, trainer_of
from workload import Workload

from engine.comm.world import end_world

WARMUP = 2


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--case", action="append", required=True)
    ap.add_argument("--rounds", type=int, default=30)
    a = ap.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    join(rank, world)
    ways = []
    for text in a.case:
        arguments = parser().parse_args(shlex.split(text))
        w = Workload.from_args(arguments)
        recipe = recipe_of(arguments, w)
        if recipe.layout.world_size != world:
            raise SystemExit(f"--case {text!r} is for {recipe.layout.world_size} ranks")
        ways.append((trainer_of(recipe, rank), batches_of(w, recipe.layout.coord(rank).dp)))
    seconds: list[list[float]] = [[] for _ in ways]
    losses = [0.0] * len(ways)
    for step in range(WARMUP + a.rounds):
        for case, (trainer, batches) in enumerate(ways):
            begin = time.perf_counter()
            losses[case] = trainer.step(step, batches).loss
            seconds[case].append(time.perf_counter() - begin)
    if rank == world - 1:
        report(a.case, [row[WARMUP:] for row in seconds], losses)
    end_world()


def report(cases: list[str], seconds: list[list[float]], losses: list[float]) -> None:
    print("| case | step ms | of the first | quarters | loss |")
    print("| --- | --- | --- | --- | --- |")
    for text, row, loss in zip(cases, seconds, losses, strict=True):
        shares = [own / first for own, first in zip(row, seconds[0], strict=True)]
        low, middle, high = statistics.quantiles(shares, n=4)
        print(
            f"| {text} | {1e3 * statistics.median(row):.0f} | {middle:.2f} | {low:.2f} to "
            f"{high:.2f} | {loss:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
