"""Write the tables of docs/explanation/plan-accuracy.md from tables of runs.

    python bench/plan/accuracy.py TABLE.csv [--left LEFT.jsonl] [--fits TRIALS.csv ...]
        [--sweeps RUNS.csv ...]

The page keeps its prose; only what is between the two marker lines is replaced. TABLE is the one
that the constants were fitted on; the others are only scored.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "explanation" / "plan-accuracy.md"
TIMES = "### Time of the whole process"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

from engine.plan.paper import TABLE_2, ladder, line, strong_scaling  # noqa: E402
from engine.plan.profiles import fitted  # noqa: E402
from engine.plan.rows import read_rows  # noqa: E402
from engine.plan.search import Z80  # noqa: E402
from engine.plan.validate import validate  # noqa: E402


def per_cent(value: float) -> str:
    return f"{100 * value:.1f} %"


def groups(table: Path) -> list[str]:
    found = validate(table)
    lines = ["### Runs, by source", "", "| source | rows | mean error | bias | worst |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for g in found.groups:
        lines.append(f"| {g.name} | {g.rows} | {per_cent(g.mape)} | {100 * g.bias:+.1f} % "
                     f"| {100 * g.worst:+.1f} % |")  # fmt: skip
    s = found.summary
    lines.append(f"| **mean over sources** | {s.rows} | **{per_cent(s.mape)}** | | |")
    lines += ["", f"Mean over rows {per_cent(s.row_mape)}; {per_cent(s.coverage)} of the rows lie "
              f"between P10 and P90. Peak memory, {found.memory.rows} rows: mean error "
              f"{per_cent(found.memory.mape)}.", ""]  # fmt: skip
    lines += ["### Seconds per micro-batch and per step", "",
              "| source | system | runs | slope s | predicted | intercept s | predicted |",
              "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for x in found.lines:
        lines.append(f"| {x.group} | {x.system} | {x.runs} | {x.slope_s:.4f} "
                     f"| {x.predicted_slope_s:.4f} | {x.intercept_s:.2f} "
                     f"| {x.predicted_intercept_s:.2f} |")  # fmt: skip
    return [*lines, ""]


def paper() -> list[str]:
    lines = ["### The paper's Table 2", "", "| system | GPUs | published s | predicted s | error |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    rows = strong_scaling()
    for r in rows:
        error = 100 * (r.predicted_s / r.published_s - 1)
        lines.append(f"| {r.system} | {r.gpus} | {r.published_s:.2f} | {r.predicted_s:.2f} "
                     f"| {error:+.1f} % |")  # fmt: skip
    for system in TABLE_2:
        a, b, c, d = line([r for r in rows if r.system == system])
        lines += ["", f"{system}: published {b:.2f} s + {a:.4f} s per micro-batch, predicted "
                  f"{d:.2f} s + {c:.4f} s."]  # fmt: skip
    lines += ["", "### The paper's Table 3", "",
              "| step | published | predicted | own gain published | own gain predicted |",
              "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for rung in ladder().rungs:
        lines.append(
            f"| {rung.step} | {per_cent(rung.published)} | {per_cent(rung.predicted)} "
            f"| {100 * rung.published_gain:+.1f} | {100 * rung.predicted_gain:+.1f} |"
        )
    return [*lines, ""]


SWEEP_KEYS = ("source_group", "layers", "hidden", "heads", "seq", "gpus", "gpu_model",
              "global_batch_sequences", "attention", "precision")  # fmt: skip
ANY_SIZE = {"llm-foundry": ("gpus", "global_batch_sequences")}
"""Sources that vary the number of GPUs with the batch: compared by time per sequence and GPU."""


def sweeps(paths: list[Path]) -> list[str]:
    """How much slower the layout that the plan would pick is than the best one measured."""
    lines = ["### Layout sweeps", "",
             "| source | sweeps | mean loss of the pick | rank correlation | mean error |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    every: list[float] = []
    sources: list[float] = []
    for path in paths:
        for name, values in sorted(_sweeps_of(path).items()):
            loss, ranks, error = np.mean(values, axis=0)
            every += [v[0] for v in values]
            sources.append(loss)
            lines.append(f"| {name} | {len(values)} | {per_cent(loss)} | {ranks:.2f} "
                         f"| {per_cent(error)} |")  # fmt: skip
    lines.append(f"| **mean over sources** | {len(every)} | **{per_cent(np.mean(sources))}** | | |")
    return [*lines, "", f"Mean over all {len(every)} sweeps: {per_cent(np.mean(every))}.", ""]


def _sweeps_of(path: Path) -> dict[str, list[tuple[float, float, float]]]:
    """By source: loss of the pick, rank correlation and mean error of every sweep."""
    scores = {r.id: r for r in validate(path).rows}
    rows = {row["id"]: row for row in read_rows(path) if row["id"] in scores}
    sets: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in rows.values():
        free = ANY_SIZE.get(row.get("source_group", ""), ())
        sets[tuple(row.get(k, "") for k in SWEEP_KEYS if k not in free)].append(row["id"])
    by_group: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for key, ids in sets.items():
        if len(ids) < 4:
            continue
        work = np.array([_work(rows[i]) if key[0] in ANY_SIZE else 1.0 for i in ids])
        predicted = np.array([scores[i].predicted_s for i in ids]) / work
        measured = np.array([scores[i].measured_s for i in ids]) / work
        loss = measured[np.argmin(predicted)] / measured.min() - 1
        ranks = np.corrcoef(predicted.argsort().argsort(), measured.argsort().argsort())[0, 1]
        error = float(np.mean(np.abs(predicted / measured - 1)))
        by_group[key[0]].append((float(loss), float(ranks), error))
    return by_group


def _work(row: dict[str, str]) -> float:
    """Sequences per GPU."""
    return float(row["global_batch_sequences"]) / float(row["gpus"])


def left_out(path: Path) -> list[str]:
    """Errors of sources and rows that had no part in the fit (bench/plan/fit.py --without)."""
    found = [json.loads(text) for text in path.read_text().splitlines()]
    folds = [one for one in found if one["without"].startswith("fold:")]
    groups = _by_group([one for one in found if not one["without"].startswith("fold:")])
    out = ["### Left out of the fit", "", "| source | rows | mean error, source left out |",
           "| --- | --- | --- |"]  # fmt: skip
    out += [f"| {n} | {len(v)} | {per_cent(_mape(v))} |" for n, v in sorted(groups.items())]
    mean = np.mean([_mape(v) for v in groups.values()])
    out.append(f"| **mean over sources** | | **{per_cent(mean)}** |")
    spreads = {name: profile.log_error for name, profile in fitted().profiles.items()}
    inside = [abs(one["log_error"]) <= Z80 * spreads[one["system"]] for one in folds]
    rows = _mape([one["log_error"] for one in folds])
    sources = np.mean([_mape(v) for v in _by_group(folds).values()])
    says = (
        f"A tenth of the rows left out in turn: {per_cent(rows)} mean over rows, "
        f"{per_cent(sources)} over sources; {per_cent(np.mean(inside))} of these rows lie between "
        "P10 and P90."
    )
    return [*out, "", says, ""]


def _by_group(found: list[dict]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for one in found:
        groups[one["group"]].append(one["log_error"])
    return groups


def _mape(log_errors: list[float]) -> float:
    return float(np.mean(np.abs(np.exp(log_errors) - 1)))


def fits(paths: list[Path]) -> list[str]:
    lines = ["### Fits or does not fit", "",
             "| trials | right | said to fit that did not | refused that fitted |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    found = [validate(path).memory for path in paths]
    for m in found:
        lines.append(f"| {m.trials} | {per_cent(m.right)} | {per_cent(m.false_fits)} "
                     f"| {per_cent(m.false_refusals)} |")  # fmt: skip
    total = sum(m.trials for m in found)
    if total:
        sums = [sum(getattr(m, name) * m.trials for m in found) / total
                for name in ("right", "false_fits", "false_refusals")]  # fmt: skip
        lines.append(f"| **{total}** | {' | '.join(f'**{per_cent(x)}**' for x in sums)} |")
    return [*lines, ""]


def speed() -> list[str]:
    """Whole processes, as a user waits for them."""
    lines = [TIMES, "", "| command | seconds |", "| --- | --- |"]
    for words in (["--gpus", "12288"], ["--gpus", "12288", "--exhaustive"]):
        command = [sys.executable, "-m", "msctl", "plan", "--model", "175b", *words, "-q"]
        best = min(_seconds(command) for _ in range(3))
        lines.append(f"| `msctl plan --model 175b {' '.join(words)}` | {best:.2f} |")
    return [*lines, ""]


def times_in(text: str) -> list[str]:
    """The times as the page has them: for a machine that is busy now."""
    found = text[text.index(TIMES) : text.index(END)]
    return [*found.rstrip().splitlines(), ""]


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--fits", type=Path, nargs="*", default=[])
    parser.add_argument("--left", type=Path, help="output of fit.py --without")
    parser.add_argument("--sweeps", type=Path, nargs="*", default=[])
    parser.add_argument("--keep-times", action="store_true", help="do not time processes anew")
    given = parser.parse_args()
    lines = groups(given.table) + (left_out(given.left) if given.left else []) + paper()
    lines += sweeps([given.table, *given.sweeps])
    text = PAGE.read_text(encoding="utf-8")
    lines += fits(given.fits) + (times_in(text) if given.keep_times else speed())
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
