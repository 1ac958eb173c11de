"""Do the paper's changes to the algorithm learn as well?  Same text, same tokens, three seeds.

    nice -n 10 python -m bench.convergence --out convergence.jsonl [--svg docs/pictures]
    python -m bench.convergence --out convergence.jsonl --show

Variants of one small GPT on the Python standard library's source, one process each:

    adamw      serial block, full attention, batch 16
    ptb        parallel block
    swa        sliding window of 3/8 of the sequence
    adamw x4   four times the batch, a quarter of the steps
    lamb x4    the same with LAMB

Each optimizer and batch first tries its rates on a seed of its own; the best one is used for the
seeds that count. Runs are appended to FILE; what is there is not run again.
"""

import argparse
import json
import statistics
import time
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.data.loader import Loader, open_loaders
from engine.device import CpuDevice
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe
from engine.train.build import build_engine, seed_everything
from engine.train.trainer import Trainer

TOKENS = 200 * 16 * 128
SEEDS = (1, 2, 3)
_TRIAL_SEED = 11
RATES = {
    "adamw": (2e-3, 4e-3, 8e-3),
    "adamw x4": (4e-3, 8e-3, 1.6e-2),
    "lamb x4": (8e-3, 1.6e-2, 3.2e-2),
}
"""Tried for each optimizer and batch; `ptb` and `swa` take what is best for `adamw`."""


class Variant(NamedTuple):
    """A change of the recipe, and whose rate it uses."""

    sets: tuple[str, ...]
    rate_of: str
    batch: int


VARIANTS = {
    "adamw": Variant((), "adamw", 16),
    "ptb": Variant(("model.block=parallel",), "adamw", 16),
    "swa": Variant(("model.window=48",), "adamw", 16),
    "adamw x4": Variant((), "adamw x4", 64),
    "lamb x4": Variant(("optimizer.name=lamb",), "lamb x4", 64),
}
_COLOURS = ("#4878a8", "#6aa56a", "#8c6bb1", "#c9a227", "#d1605e")


def recipe_of(name: str, *, seed: int, rate: float) -> Recipe:
    """The recipe of a run: `tiny` on one rank, with the variant's keys."""
    variant = VARIANTS[name]
    steps = TOKENS // (variant.batch * 128)
    sets = [
        "layout.tp=1", "layout.pp=1", "layout.vpp=1", "layout.dp=1", f"seed={seed}",
        f"batch.global_batch={variant.batch}", "batch.micro_batch=16", f"train.steps={steps}",
        f"optimizer.lr={rate}", f"optimizer.min_lr={rate / 10}",
        f"optimizer.warmup_steps={steps // 10}", "train.threads=1", "train.eval_batches=8",
        *variant.sets,
    ]  # fmt: skip
    return load_recipe(Path("recipes/tiny.toml"), sets)


def run(name: str, *, seed: int, rate: float) -> dict[str, Any]:
    """Train one variant; losses by tokens, and the held-out loss in nats per byte."""
    recipe = recipe_of(name, seed=seed, rate=rate)
    seed_everything(recipe)
    mesh = build_mesh(recipe.layout, 0, backend="gloo", timeout_s=60)
    events = EventWriter(None, 0)
    trainer = Trainer(recipe, build_engine(recipe, mesh, CpuDevice(), events), events)
    train, held_out = open_loaders(recipe, replica=0)
    assert held_out is not None, "tiny holds documents out"
    start, curve = time.perf_counter(), []
    for step in range(recipe.train.steps):
        result = trainer.step(step, lambda step: _micro(train, step))
        curve.append(((step + 1) * trainer.tokens_per_step, round(result.loss, 4)))
    value = trainer.evaluate([_micro(held_out, i) for i in range(held_out.steps_per_epoch)])
    return {
        "variant": name, "seed": seed, "rate": rate, "held_out": round(value, 4),
        "seconds": round(time.perf_counter() - start, 1), "curve": curve,
    }  # fmt: skip


def _micro(loader: Loader, step: int) -> list[MicroBatch]:
    return [MicroBatch(x, y, ids, step) for x, y, ids in loader.microbatches(step)]


def best_rate(rows: list[dict[str, Any]], name: str) -> float:
    """Of the trials of an optimizer and batch."""
    trials = [r for r in rows if r["seed"] == _TRIAL_SEED and r["variant"] == name]
    return float(min(trials, key=lambda r: r["held_out"])["rate"])


def missing(rows: list[dict[str, Any]]) -> tuple[str, int, float] | None:
    """The next run: trials first."""
    done = {(r["variant"], r["seed"], r["rate"]) for r in rows}
    for name, rates in RATES.items():
        for rate in rates:
            if (name, _TRIAL_SEED, rate) not in done:
                return name, _TRIAL_SEED, rate
    for seed in SEEDS:
        for name, variant in VARIANTS.items():
            rate = best_rate(rows, variant.rate_of)
            if (name, seed, rate) not in done:
                return name, seed, rate
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """Held-out losses as a Markdown table, with the difference from `adamw` seed by seed."""
    lines = [
        "| variant | learning rate | held-out loss, nats per byte, by seed | mean | "
        "against adamw, mean (lowest .. highest) |",
        "| --- | --- | --- | --- | --- |",
    ]
    values = {name: _values(rows, name) for name in VARIANTS}
    for name, variant in VARIANTS.items():
        mine = values[name]
        gaps = [a - b for a, b in zip(mine, values["adamw"], strict=True)]
        rate = best_rate(rows, variant.rate_of)
        lines.append(
            f"| {name} | {rate:g} | {', '.join(f'{v:.4f}' for v in mine)} | "
            f"{statistics.mean(mine):.4f} | {statistics.mean(gaps):+.4f} "
            f"({min(gaps):+.4f} .. {max(gaps):+.4f}) |"
        )
    return "\n".join(lines)


def _values(rows: list[dict[str, Any]], name: str) -> list[float]:
    rate = best_rate(rows, VARIANTS[name].rate_of)
    found = {r["seed"]: r["held_out"] for r in rows if (r["variant"], r["rate"]) == (name, rate)}
    return [found[seed] for seed in SEEDS]


def svg(rows: list[dict[str, Any]]) -> str:
    """Training loss over tokens, mean of the seeds, as an SVG document."""
    width, height, left, top = 760, 420, 60, 30
    low, high = 1.8, 4.2

    def place(tokens: float, loss: float) -> str:
        x = left + (width - left - 20) * tokens / TOKENS
        y = top + (height - top - 40) * (high - min(loss, high)) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" role="img" '
        'aria-label="training loss over tokens">',
        "<style>text{fill:#333}line{stroke:#bbb}@media(prefers-color-scheme:dark)"
        "{text{fill:#ddd}line{stroke:#555}}</style>",
        f'<text x="{left}" y="16">training loss, nats per byte, over tokens (mean of '
        f"{len(SEEDS)} seeds)</text>",
    ]
    for loss in (2.0, 2.5, 3.0, 3.5, 4.0):
        x, y = place(0, loss).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{width - 20}" y2="{y}"/>')
        parts.append(f'<text x="{left - 34}" y="{float(y) + 4:.1f}">{loss:.1f}</text>')
    for index, (name, variant) in enumerate(VARIANTS.items()):
        rate = best_rate(rows, variant.rate_of)
        curves = [
            r["curve"] for r in rows
            if r["variant"] == name and r["rate"] == rate and r["seed"] in SEEDS
        ]  # fmt: skip
        points = [
            place(same[0][0], statistics.mean(loss for _, loss in same))
            for same in zip(*curves, strict=True)
        ]
        colour = _COLOURS[index]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" '
            f'points="{" ".join(points)}"/>'
        )
        parts.append(
            f'<text x="{width - 120}" y="{top + 20 + 18 * index}" style="fill:{colour}">'
            f"{escape(name)}</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--out", type=Path, default=Path("convergence.jsonl"))
    ap.add_argument("--svg", type=Path, help="write the curves to this file")
    ap.add_argument("--show", action="store_true", help="run nothing")
    a = ap.parse_args()
    rows = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []
    torch.set_num_threads(1)
    if not a.show and missing(rows):
        start_world(0, 1, Rendezvous("127.0.0.1", 0), backend="gloo", timeout_s=60)
        while (todo := missing(rows)) is not None:
            name, seed, rate = todo
            rows.append(run(name, seed=seed, rate=rate))
            with a.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
            last = rows[-1]
            print(f"{name}, seed {seed}, rate {rate:g}: {last['held_out']}", flush=True)
        end_world()
    print(table(rows))
    if a.svg:
        a.svg.write_text(svg(rows))


if __name__ == "__main__":
    main()
