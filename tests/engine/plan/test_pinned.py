"""What the model says of many kinds of job, to four digits: constants belong to formulas.

The constants were fitted with these formulas (`bench/plan/fit.py`). Where a line of a golden file
changes on purpose, fit anew and write the tables of docs/explanation/plan-accuracy.md again.
`published.csv` holds one or two of the public, permissively licensed runs for every source, kind of
layout, precision, recomputation and rule for empty cells; `own_jobs` adds what none of them ran.
"""

from pathlib import Path

import msgspec
import pytest

from engine.plan.memory import peak_memory
from engine.plan.price import price
from engine.plan.profiles import fitted
from engine.plan.rows import read_rows
from engine.plan.runs import on_machine, this_machine
from engine.plan.setup import Experts, Job, PlanLayout, grid_of
from engine.plan.simulate import simulate_step
from engine.plan.validate import cases_of, validate
from engine.spec.presets import model_preset
from tests.engine.plan.case import job, replace

_ROUNDING = 1e-12
TABLE = Path(__file__).with_name("published.csv")


def digits(value: float) -> str:
    """Four of them, and zero for what only rounding left: last bits differ between machines."""
    return f"{float(value):.4g}" if abs(value) > _ROUNDING else "0"


def told(name: str, one: Job, layout: PlanLayout) -> str:
    """Prices, the simulated step and the memory of a job, a line each."""
    step, grid = simulate_step(one, layout), grid_of([layout])
    prices, memory = price(one, grid), peak_memory(one, grid)
    parts = ("step_s", "pipeline_s", "compute_only_s", "busy_s", "bubble", "exposed_tp_s",
             "exposed_pp_s", "exposed_dp_s")  # fmt: skip
    lines = [
        f"{name}: {msgspec.json.encode(layout).decode()}",
        "  step " + " ".join(f"{part} {digits(getattr(step, part))}" for part in parts),
        "  price " + " ".join(f"{k} {digits(v[0])}" for k, v in prices._asdict().items()),
        "  memory " + " ".join(f"{k} {digits(v[0])}" for k, v in memory._asdict().items()),
    ]
    return "\n".join(line.replace('"', "") for line in lines) + "\n"


@pytest.mark.slow
def test_runs_of_every_kind_are_priced_as_when_the_constants_were_fitted(golden):
    cases, skipped = cases_of(read_rows(TABLE), fitted())
    text = [
        told(case.id, case.job, case.layouts[0])
        + f"  {len(case.layouts)} layouts, {case.hardware}, {case.job.precision}, "
        f"{case.job.attention}, layers only {case.layers_only}, fits {case.fits}\n"
        + "".join(f"  assumed {note}\n" for note in case.assumptions)
        for case in cases
    ]
    text += [f"{one.id}: skipped, {one.reason}\n" for one in skipped]
    golden("plan_published.txt", "".join(text))


@pytest.mark.slow
def test_the_score_of_these_runs(golden):
    result = validate(TABLE)
    lines = [
        f"{r.id} {r.group} {r.hardware} predicted {digits(r.predicted_s)} ({digits(r.p10_s)} to "
        f"{digits(r.p90_s)}) measured {digits(r.measured_s)} error {r.error:+.3f}"
        for r in result.rows
    ]
    for kind in (result.groups, result.hardware):
        lines += [f"{g.name}: {g.rows} rows, mean {g.mape:.4f}, bias {g.bias:+.4f}, worst "
                  f"{g.worst:+.4f}" for g in kind]  # fmt: skip
    lines += [str(msgspec.to_builtins(line)) for line in result.lines]
    summary = {k: round(v, 4) for k, v in msgspec.structs.asdict(result.summary).items()}
    memory = {k: round(v, 4) for k, v in msgspec.structs.asdict(result.memory).items()}
    golden("plan_score.txt", "\n".join([*lines, str(summary), str(memory)]) + "\n")


SPARSE = Experts(count=64, top_k=8, ffn=1408, shared_ffn=2816, dense_layers=1)
LLAMA = model_preset("llama3-8b")


def own_jobs() -> dict[str, tuple[Job, PlanLayout]]:
    """Jobs with what no published row has, or not alone."""
    plain, wide = job("13b"), job(LLAMA, gpus=256, batch=512)
    moe = replace(wide, experts=SPARSE)
    here = on_machine(replace(job("13b", gpus=8, batch=16), cluster=this_machine(8, cores=2)))
    slow = replace(here.cluster.intra, bytes_per_s=5e7, shared=True)
    wired = replace(here, cluster=replace(here.cluster, intra=slow, inter=slow))
    deep = PlanLayout(tp=2, pp=4, vpp=5, dp=8, micro_batch=2)
    both = PlanLayout(tp=2, pp=2, vpp=2, dp=2, micro_batch=2)
    return {
        "zero bubble": (plain, replace(deep, vpp=1, schedule="zero-bubble")),
        "gpipe": (plain, replace(deep, vpp=1, schedule="gpipe")),
        "interleaved": (plain, deep),
        "no sequence parallelism": (plain, replace(deep, sequence_parallel=False)),
        "zero 0": (plain, replace(deep, zero=0)),
        "zero 3": (plain, PlanLayout(tp=2, dp=32, zero=3)),
        "zero 3 in shards of 8": (plain, PlanLayout(dp=64, zero=3, shard=8)),
        "zero 2 in shards of 4": (plain, PlanLayout(tp=4, dp=16, zero=2, shard=4)),
        "full recomputation": (plain, replace(deep, recompute="full")),
        "context": (wide, PlanLayout(tp=4, cp=4, dp=16)),
        "context and pipeline": (wide, PlanLayout(tp=2, cp=2, pp=4, vpp=4, dp=16)),
        "experts": (moe, PlanLayout(tp=2, pp=2, dp=64, ep=16)),
        "experts and zero 3": (moe, PlanLayout(tp=1, dp=256, ep=8, zero=3)),
        "parallel block": (replace(plain, model=replace(plain.model, block="parallel")), deep),
        "uneven chunks": (wide, PlanLayout(tp=8, pp=3, dp=10)),
        "shared cores": (here, both),
        "shared cores, one wire": (wired, both),
        "shared cores, dp": (here, PlanLayout(dp=8, micro_batch=2)),
    }


def test_jobs_that_no_published_run_has(golden):
    golden("plan_own.txt", "".join(told(name, *one) for name, one in own_jobs().items()))


@pytest.mark.parametrize("name", ["interleaved", "zero 3", "context", "experts"])
def test_pinned_jobs_obey_the_work_they_do(name):
    # no step is shorter than its compute, and no memory smaller than the weights in 16 bits
    one, layout = own_jobs()[name]
    step, memory = simulate_step(one, layout), peak_memory(one, grid_of([layout]))
    assert step.step_s >= step.busy_s > 0
    assert float(memory.weights[0]) >= 2 * one.model.layer_params / layout.tp / layout.dp
