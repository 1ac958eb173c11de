"""The paper's tables as data, and the planner's own version of them (paper 6.1, 6.2).

`ladder` replays Table 3: each row changes what its name says and nothing else. `strong_scaling`
replays Table 2 for both systems. Numbers the planner does not reproduce are in DISCREPANCIES, with
the reason.
"""

from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from engine.plan.cost import flops_per_step, mfu
from engine.plan.hardware import cluster_for
from engine.plan.lines import regress
from engine.plan.profiles import Fitted, SystemProfile, fitted
from engine.plan.rows import WINDOW
from engine.plan.setup import Attention, Job, PlanLayout
from engine.plan.simulate import simulate_step
from engine.spec.base import Noun, doc
from engine.spec.model import ModelSpec
from engine.spec.presets import model_preset

TABLE_2: dict[str, tuple[tuple[int, int, float, float], ...]] = {
    "megatron-2023": (
        (256, 768, 40.0, 0.530), (512, 768, 21.2, 0.499), (768, 768, 15.2, 0.467),
        (1024, 768, 11.9, 0.447), (3072, 6144, 29.02, 0.487), (6144, 6144, 14.78, 0.478),
        (8192, 6144, 12.24, 0.433), (12288, 6144, 8.57, 0.412),
    ),
    "megascale": (
        (256, 768, 32.0, 0.653), (512, 768, 16.5, 0.635), (768, 768, 11.5, 0.613),
        (1024, 768, 8.9, 0.590), (3072, 6144, 23.66, 0.591), (6144, 6144, 12.21, 0.573),
        (8192, 6144, 9.56, 0.549), (12288, 6144, 6.34, 0.552),
    ),
}  # fmt: skip
"""System -> (GPUs, batch, iteration s, MFU)."""

TABLE_3: tuple[tuple[str, float], ...] = (
    ("Megatron-LM", 0.477), ("parallel transformer block", 0.523),
    ("sliding-window attention", 0.533),
    ("TP overlap", 0.555), ("PP overlap", 0.580), ("DP overlap", 0.595),
    ("efficient operators", 0.612), ("misc", 0.623), ("LAMB, batch x3", 0.653),
)  # fmt: skip
"""Cumulative MFU at 256 GPUs, batch 256."""

FIGURE_9: dict[str, tuple[tuple[int, float], ...]] = {
    "megatron-2023": ((2240, 0.492), (4480, 0.488), (11200, 0.482)),
    "megascale": ((2240, 0.543), (4480, 0.541), (11200, 0.543)),
}
"""Weak scaling of the 530B model, batch = GPUs."""

DISCREPANCIES: tuple[tuple[str, str], ...] = (
    ("LAMB removes 87.5 % of the bubbles", "four steps merged into one remove 75 %"),
    (
        "Table 2 aggregate PFLOP/s",
        "four cells contradict MFU x GPUs x 312 TFLOP/s of their own row",
    ),
    ("MegaScale MFU column", "credits sliding windows at their cost, the Megatron column does not"),
    ("batch x4", "the ablation uses x3; x4 is the 13B convergence test"),
)
"""What the paper says and what follows from its own numbers; docs/explanation/paper-notes.md."""


class Rung(Noun, frozen=True, kw_only=True):
    """One row of Table 3, published and predicted."""

    step: str
    published: float
    predicted: float
    published_gain: float
    predicted_gain: float
    step_s: float


class Ladder(Noun, frozen=True, kw_only=True):
    """The whole of Table 3."""

    convention: str = (
        "MFU as the paper prints it: full attention credited in the first two rows, sliding "
        "windows at their cost from the third on"
    )
    rungs: tuple[Rung, ...]
    worst_gain_error: Annotated[float, doc("largest error of a row's own gain, 0..1")]
    worst_total_error: Annotated[float, doc("largest error of a row's MFU, 0..1")]


class ScalingRow(NamedTuple):
    """One row of Table 2, published and predicted."""

    system: str
    gpus: int
    microbatches: int
    published_s: float
    predicted_s: float


class Trial(NamedTuple):
    """What varies between the paper's runs."""

    system: SystemProfile
    model: ModelSpec
    attention: Attention
    batch: int
    zero: int


def paper_job(trial: Trial, gpus: int, constants: Fitted) -> Job:
    """The paper's cluster and data: A100-80GB, 8 x 200 Gb/s a node, 16-bit, sequences of 2,048."""
    found = cluster_for("A100-80GB", "8x200Gb/s per node", gpus)
    assert found is not None, "the paper's own cluster is known"
    return Job(
        model=trial.model, cluster=found[0], global_batch=trial.batch, precision="bf16",
        attention=trial.attention, profile=trial.system, physics=constants.physics,
        speed=constants.speed_of(found[0].device.name, "bf16"),
    )  # fmt: skip


def paper_layout(gpus: int, *, pp: int = 8, vpp: int = 6, zero: int = 2) -> PlanLayout:
    """tp 8 with sequence parallelism, micro-batches of one sequence."""
    return PlanLayout(
        tp=8, pp=pp, vpp=vpp, dp=gpus // (8 * pp), zero=zero, micro_batch=1  # type: ignore[arg-type]
    )  # fmt: skip


def strong_scaling(constants: Fitted | None = None) -> list[ScalingRow]:
    """Table 2, both systems."""
    use = constants or fitted()
    base = model_preset("175b")
    ours = msgspec.structs.replace(base, block="parallel", window=WINDOW)
    rows = []
    for name, published in TABLE_2.items():
        mine = name == "megascale"
        for gpus, batch, seconds, _ in published:
            trial = Trial(
                use.profiles[name], ours if mine else base, "flash2" if mine else "flash1",
                batch, 2 if mine else 1,
            )  # fmt: skip
            job = paper_job(trial, gpus, use)
            step = simulate_step(job, paper_layout(gpus, zero=trial.zero))
            rows.append(ScalingRow(name, gpus, batch * 64 // gpus, seconds, step.step_s))
    return rows


def line(rows: list[ScalingRow]) -> tuple[float, float, float, float]:
    """Slope and intercept over micro-batches: published, then predicted."""
    m = np.array([row.microbatches for row in rows], dtype=float)
    published = regress(m, np.array([row.published_s for row in rows]))
    return *published, *regress(m, np.array([row.predicted_s for row in rows]))


def ladder(constants: Fitted | None = None) -> Ladder:
    """Table 3: what each change is predicted to bring."""
    rungs: list[Rung] = []
    before = (TABLE_3[0][1], 0.0)
    for (name, published), (job, zero) in zip(
        TABLE_3, ablation(constants or fitted()), strict=True
    ):
        step = simulate_step(job, paper_layout(256, zero=zero))
        useful = float(mfu(job, step.step_s, 256, "window"))
        first = not rungs
        rungs.append(
            Rung(
                step=name, published=published, predicted=useful,
                published_gain=0.0 if first else published - before[0],
                predicted_gain=0.0 if first else useful - before[1],
                step_s=step.step_s,
            )
        )  # fmt: skip
        before = (published, useful)
    return Ladder(
        rungs=tuple(rungs),
        worst_gain_error=max(abs(r.predicted_gain - r.published_gain) for r in rungs),
        worst_total_error=max(abs(r.predicted - r.published) for r in rungs),
    )


def published_s(job: Job, useful: float, gpus: int = 256) -> float:
    """The iteration time behind a printed MFU."""
    return flops_per_step(job, "window") / (useful * gpus * job.peak_flops_per_s)


def ablation(constants: Fitted) -> list[tuple[Job, int]]:
    """The job of every row of Table 3, each one change further; and its ZeRO stage."""
    old, new = constants.profiles["megatron-2023"], constants.profiles["megascale"]
    change = msgspec.structs.replace
    serial = model_preset("175b")
    parallel = change(serial, block="parallel")
    window = change(parallel, window=WINDOW)
    tp = change(old, overlap_tp=True, tp_hidden=new.tp_hidden)
    pp = change(tp, overlap_pp=True, message_s=new.message_s)
    dp = change(pp, overlap_dp=True, dp_hidden=new.dp_hidden, grad_bytes=new.grad_bytes)
    ops = change(dp, fused=True, host_serial=new.host_serial)
    trials = (
        Trial(old, serial, "flash1", 256, 1),
        Trial(old, parallel, "flash1", 256, 1),
        Trial(old, window, "flash1", 256, 1),
        Trial(tp, window, "flash1", 256, 1),
        Trial(pp, window, "flash1", 256, 1),
        Trial(dp, window, "flash1", 256, 2),
        Trial(ops, window, "flash2", 256, 2),
        Trial(new, window, "flash2", 256, 2),
        Trial(new, window, "flash2", 768, 2),
    )
    return [(paper_job(trial, 256, constants), trial.zero) for trial in trials]
