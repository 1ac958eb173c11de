"""A step that grows over hundreds of steps, and steps that only vary."""

import json
import random

import numpy as np
import pytest
from synthetic import write_run

from engine.diagnose.decline import _gain, _since, _trend
from engine.diagnose.run import diagnose_run
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=1, pp=1, dp=2)
STEPS = 300


def growth(rank: int, step: int) -> float:
    return 1 + 0.12 * step / STEPS


def test_a_forward_that_creeps_up_on_all_ranks_is_a_decline_and_no_straggler(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT, steps=STEPS, factor=growth)
    mfu = [{"step": n, "loss": 2.0, "grad_norm": 1.0, "step_s": 0.1, "mfu": 0.5 / growth(0, n)}
           for n in range(STEPS)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mfu))
    report = diagnose_run(run)
    assert report.verdict.category == "perf_drift"
    assert report.verdict.state == "degraded"
    finding = next(f for f in report.findings if f.category == "perf_drift")
    assert finding.ranks == ()
    assert "backward" in finding.what
    assert "MFU fell from 49.7 % to 44.9 %" in finding.why
    assert 0.05 < finding.cost < 0.12


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_bursts_are_no_trend(seed, tmp_path):
    rng = random.Random(seed)
    slow = {step for step in range(STEPS) if rng.random() < 0.05}

    def varies(rank: int, step: int) -> float:
        return 1.6 if step in slow else 1.0

    run = write_run(tmp_path / "run", LAYOUT, steps=STEPS, factor=varies, noise=0.03, seed=seed)
    assert [f for f in diagnose_run(run).findings if f.category == "perf_drift"] == []


def test_one_rank_that_creeps_is_a_straggler_first(tmp_path):
    layout = ParallelLayout(tp=1, pp=1, dp=8)

    def creeps(rank: int, step: int) -> float:
        return growth(rank, step) if rank == 3 else 1.0

    run = write_run(tmp_path / "run", layout, steps=STEPS, factor=creeps)
    verdict = diagnose_run(run).verdict
    assert (verdict.category, verdict.ranks) == ("perf_straggler", (3,))


def test_a_short_run_says_nothing_about_trends(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT, steps=60, factor=lambda r, s: 1 + 0.01 * s)
    assert [f for f in diagnose_run(run).findings if f.category == "perf_drift"] == []


def test_a_trend_needs_a_rise_and_a_size():
    rising = np.linspace(1.0, 1.2, 10)
    assert _trend(rising) == pytest.approx(rising[-2:].mean() / rising[:2].mean() - 1)
    assert _trend(rising[::-1]) is None
    assert _trend(np.linspace(1.0, 1.001, 10)) is None, "too little to matter"
    assert _trend(np.array([0.0, *rising[1:]])) is None, "a stretch without a time"


def test_a_part_gains_what_lies_between_its_first_and_last_stretch():
    stretches = np.repeat([1.0, 1.5, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.0, 3.0], 30)
    assert _gain(stretches) == pytest.approx(2.0)


def test_growth_begins_where_the_step_stays_above_its_start():
    late = np.array([1.0, 1.0, 1.0, 1.05, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    assert _since(late) == 6, "1.2 is a fifth of the whole growth and not above it"
    assert _since(np.array([1.0, 2.0, 2.0, 2.0])) == 1
    assert _since(np.array([1.0, 1.0, 1.0, 1.0])) == 3


def test_a_steady_mfu_is_not_said_to_fall(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT, steps=STEPS, factor=growth)
    rows = [{"step": n, "loss": 2.0, "grad_norm": 1.0, "step_s": 0.1, "mfu": 0.5}
            for n in range(STEPS)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finding = next(f for f in diagnose_run(run).findings if f.category == "perf_drift")
    assert "MFU" not in finding.why
    assert finding.step in range(30, 91), "a fifth of the growth is reached after a fifth"
