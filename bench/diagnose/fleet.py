"""Find slow nodes in a generated fleet, in memory and from disk; back-test the forecast.

    python bench/diagnose/fleet.py [--ranks 12288] [--steps 60] [--disk DIR] [--forecast]

Stages differ, sequences differ between replicas and steps, a half per cent of the nodes is 10 %
slow: constantly, in bursts, drifting, or one device of the node. --disk writes event files.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from engine.diagnose.online import LIMIT, forecast
from engine.diagnose.peers import Places, places
from engine.diagnose.run import diagnose_run
from engine.diagnose.straggler import find_slow
from engine.spec.layout import ParallelLayout

KINDS = ("constant", "bursts", "drift", "device")
BASE_S = {"forward": 0.9, "backward": 1.8}


def fleet(layout: ParallelLayout, steps: int, noise: float, seed: int):
    """Own seconds [ranks, steps] and the slow nodes with their kind."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(layout.world_size, dtype=np.int32)
    at = places(layout, ranks)
    stage = np.where(at.stage == 0, 1.06, np.where(at.stage == layout.pp - 1, 1.12, 1.0))
    sequences = 1 + 0.03 * rng.standard_normal((layout.dp, steps))[at.replica]
    own = 2.7 * stage[:, None] * sequences * (1 + noise * rng.standard_normal((len(ranks), steps)))
    nodes = len(ranks) // 8
    bad = np.sort(rng.choice(nodes, max(1, round(nodes * 0.005)), replace=False))
    truth = {}
    for number, node in enumerate(bad.tolist()):
        kind = KINDS[number % len(KINDS)]
        factor = np.full(steps, 1.1)
        if kind == "bursts":
            on = np.zeros(steps, bool)
            for start in rng.choice(max(1, steps // 10), max(1, steps // 50), replace=False):
                on[10 * start : 10 * start + 10] = True
            factor = np.where(on, 1.2, 1.0)
        if kind == "drift":
            factor = 1 + 0.2 * np.linspace(0, 1, steps)
        rows = (
            [node * 8 + int(rng.integers(8))] if kind == "device" else range(node * 8, node * 8 + 8)
        )
        own[list(rows)] *= factor
        truth[node] = kind
    return own.astype(np.float32), at, ranks, truth


def in_memory(layout: ParallelLayout, steps: int) -> None:
    for noise in (0.01, 0.02):
        for seed in range(5):
            own, at, ranks, truth = fleet(layout, steps, noise, seed)
            begin = time.perf_counter()
            slow = find_slow(own, at, ranks)
            seconds = time.perf_counter() - begin
            found = {s.ranks[0] // 8 for s in slow}
            missed = [truth[n] for n in set(truth) - found]
            print(
                f"noise {noise:.0%} seed {seed}: {len(found & set(truth))} of {len(truth)} slow, "
                f"{len(found - set(truth))} false, missed {missed}, {seconds:.2f} s"
            )


def on_disk(layout: ParallelLayout, steps: int, folder: Path) -> None:
    own, _, _, truth = fleet(layout, steps, 0.02, 0)
    size = write(layout, own, folder / "events")
    begin = time.perf_counter()
    report = diagnose_run(folder)
    seconds = time.perf_counter() - begin
    found = {f.ranks[0] // 8 for f in report.findings if f.category == "perf_straggler"}
    peak = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(
        f"disk: {size / 1e6:.0f} MB of events, {len(found & set(truth))} of {len(truth)} slow, "
        f"{len(found - set(truth))} false, {seconds:.1f} s, largest process {peak / 1e6:.2f} GB"
    )


def write(layout: ParallelLayout, own, events: Path) -> int:
    """Event files with forward, backward, a wait for the slowest, and the step."""
    events.mkdir(parents=True, exist_ok=True)
    size = 0
    longest = own.max(axis=0)
    for rank in range(layout.world_size):
        c = layout.coord(rank)
        lines = [
            f'{{"v":1,"rank":{rank},"seq":0,"kind":"instant","name":"clock","t_ns":0,"attrs":{{"wall_ns":0,'
            f'"world":{layout.world_size},"tp":{layout.tp},"pp":{layout.pp},"dp":{layout.dp},'
            f'"tp_index":{c.tp},"pp_index":{c.pp},"dp_index":{c.dp}}}}}'
        ]
        t = 0
        for step in range(own.shape[1]):
            begin = t
            total = float(own[rank, step])
            parts = [(n, total * b / 2.7, '{"chunk":0,"microbatch":0}') for n, b in BASE_S.items()]
            parts.append(("wait", float(longest[step]) - total, '{"on":"dp_reduce"}'))
            for name, seconds, attrs in [*parts, ("optimizer", 0.14, "{}")]:
                lines.append(line(rank, step, name, t, round(seconds * 1e9), attrs))
                t += round(seconds * 1e9)
            lines.append(line(rank, step, "step", begin, t - begin, "{}"))
        data = "\n".join([*lines, ""]).encode()
        size += len(data)
        (events / f"rank-{rank:05d}.jsonl").write_bytes(data)
    return size


def line(rank: int, step: int, name: str, t: int, length: int, attrs: str) -> str:
    return (
        f'{{"v":1,"rank":{rank},"seq":1,"step":{step},"kind":"span","name":"{name}","stream":"compute",'
        f'"t_ns":{t},"dur_ns":{length},"attrs":{attrs}}}'
    )


def back_test(trials: int = 40) -> None:
    """Precision and recall of the forecast: 512 ranks, 400 steps, half with a creeping rank.

    Asked every eight steps with the last 128. A warning is right if it names the rank before the
    limit is passed; one for a rank that never passes it is false.
    """
    layout = ParallelLayout(tp=8, pp=4, dp=16)
    ranks = np.arange(layout.world_size, dtype=np.int32)
    at = places(layout, ranks)
    right = late = false = creeping = 0
    leads = []
    for seed in range(trials):
        rng = np.random.default_rng(1000 + seed)
        noise = (0.01, 0.02)[seed // 2 % 2]
        own = (1 + noise * rng.standard_normal((len(ranks), 400))).astype(np.float32)
        own[int(rng.integers(512)), 100:104] *= 1.3  # a pause is no trend
        victim = int(rng.integers(512)) if seed % 2 else -1
        crosses = 10**9
        if victim >= 0:
            creeping += 1
            start, slope = int(rng.integers(20, 120)), float(rng.uniform(2e-4, 6e-4))
            own[victim] *= 1 + slope * np.clip(np.arange(400) - start, 0, None)
            crosses = start + int(LIMIT / slope)
        warned = first_warnings(own, at, ranks)
        false += sum(rank != victim for rank in warned)
        if victim in warned:
            right += warned[victim] < crosses
            late += warned[victim] >= crosses
            leads.append(crosses - warned[victim])
    precision = right / max(1, right + late + false)
    print(
        f"forecast: {creeping} creeping ranks in {trials} fleets, in time {right}, late {late}, "
        f"false {false}; precision {precision:.2f}, recall {right / max(1, creeping):.2f}, "
        f"median lead {np.median(leads):.0f} steps"
    )


def first_warnings(own, at: Places, ranks) -> dict[int, int]:
    warned: dict[int, int] = {}
    for step in range(32, 400, 8):
        for found in forecast(own[:, max(0, step - 128) : step], at, ranks):
            warned.setdefault(found.rank, step)
    return warned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=12288)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--forecast", action="store_true")
    given = parser.parse_args()
    layout = ParallelLayout(tp=8, pp=8, dp=given.ranks // 64)
    if given.forecast:
        back_test()
    elif given.disk is not None:
        on_disk(layout, given.steps, given.disk)
    else:
        in_memory(layout, given.steps)


if __name__ == "__main__":
    main()
