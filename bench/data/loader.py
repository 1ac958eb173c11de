"""What waiting for data costs a step: a loader in every rank against one process per node.

    python bench/data/loader.py [--ranks 8] [--dp 2] [--seq 128] [--global-batch 32]
        [--micro-batch 4] [--steps 200] [--step-ms 40]

Every rank is a process that takes the micro-batches of a step, then computes nothing for --step-ms
(it sleeps: the two cores of a small machine are not eight ranks). Printed: the wait for data as a
share of the step over all ranks and steps but the first, and bytes of token files taken by the
loaders against bytes of the samples in the steps. The tokens are the standard library's source.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.data.loader import open_loaders  # noqa: E402
from engine.data.node_loader import open_node_loaders  # noqa: E402
from engine.data.node_process import NodeProcess, NodeTask  # noqa: E402
from engine.data.samples import open_samples  # noqa: E402
from engine.spec.layout import ParallelLayout  # noqa: E402
from engine.spec.load import dump_recipe  # noqa: E402
from engine.spec.model import ModelSpec  # noqa: E402
from engine.spec.recipe import BatchSpec, DataSpec, Recipe, TrainSpec  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("ranks", 8), ("dp", 2), ("seq", 128), ("global-batch", 32), ("micro-batch", 4),
        ("steps", 200), ("step-ms", 40),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(
            name="loader",
            model=ModelSpec(layers=1, hidden=8, heads=1, vocab=256, seq=given.seq),
            batch=BatchSpec(global_batch=given.global_batch, micro_batch=given.micro_batch),
            layout=ParallelLayout(dp=given.dp),
            data=DataSpec(cache=str(Path(folder) / "cache")),
            train=TrainSpec(eval_batches=0),
        )
        open_samples(recipe)
        per_step = given.global_batch * (given.seq + 1)
        tokens = given.global_batch * given.seq * 1000 / given.step_ms
        print(
            f"{given.ranks} ranks, dp {given.dp}, {given.global_batch} sequences of {given.seq} "
            f"tokens every {given.step_ms} ms: {tokens:,.0f} tokens/s, {given.steps} steps"
        )
        heads = ("loader", "mean share of step", "median share", "median wait", "worst wait")
        print(*heads, "bytes read / bytes of samples", sep="\t")
        report("per rank", measure(recipe, given, ""), given, per_step)
        path = Path(folder) / "recipe.toml"
        path.write_text(dump_recipe(recipe))
        task = NodeTask(recipe=str(path), replicas=tuple(range(given.dp)), ranks=given.ranks)
        with NodeProcess(task, log_file=Path(folder) / "data.log") as process:
            report("per node", measure(recipe, given, process.address), given, per_step)


def report(name: str, results: list[dict[str, Any]], given: Any, per_step: int) -> None:
    waits = sorted(w for r in results for w in r["waits"][1:])
    share = sum(waits) / len(waits) / (given.step_ms / 1000)
    total = max if name == "per node" else sum
    read = total(r["bytes_read"] for r in results) / (per_step * results[0]["steps_read"])
    median = waits[len(waits) // 2]
    print(
        f"{name}\t{share:.3%}\t{median * 1000 / given.step_ms:.3%}\t{median * 1e6:.0f} us\t"
        f"{waits[-1] * 1e3:.2f} ms\t{read:.2f}"
    )


def measure(recipe: Recipe, given: Any, address: str) -> list[dict[str, Any]]:
    """What every rank saw; processes are forked, as the product's are."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    barrier = context.Barrier(given.ranks)
    ranks = [
        context.Process(target=rank_body, args=(recipe, rank, given, address, barrier, queue))
        for rank in range(given.ranks)
    ]
    for rank in ranks:
        rank.start()
    results = [queue.get(timeout=300) for _ in ranks]
    for rank in ranks:
        rank.join()
    return results


def rank_body(
    recipe: Recipe, rank: int, given: Any, address: str, barrier: Any, queue: Any
) -> None:
    replica = rank % recipe.layout.dp
    if address:
        loader: Any = open_node_loaders(recipe, address, replica=replica)[0]
    else:
        loader = open_loaders(recipe, replica=replica)[0]
    waits = []
    for step in range(given.steps):
        barrier.wait()  # a step ends together, as its collectives make it
        start = time.perf_counter()
        loader.microbatches(step)
        waits.append(time.perf_counter() - start)
        time.sleep(max(0.0, given.step_ms / 1000 - waits[-1]))
    steps = given.steps
    if address:
        read, steps = loader.counters.bytes_read, loader.counters.steps
    else:
        read = loader.bytes_read
    queue.put({"waits": waits, "bytes_read": read, "steps_read": steps})


if __name__ == "__main__":
    main()
