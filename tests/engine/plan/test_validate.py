from pathlib import Path

import numpy as np
import pytest

from engine.plan.profiles import fitted
from engine.plan.rows import read_rows
from engine.plan.validate import cases_of, score_memory, validate

TABLE = Path(__file__).with_name("runs.csv")
RESULT = validate(TABLE)
KORTHIKANTI_MEAN, MEGASCALE_MEAN, MEGASCALE_ROW = 0.04, 0.04, 0.06


def test_published_runs_are_predicted_within_the_stated_errors():
    groups = {group.name: group for group in RESULT.groups}
    assert groups["korthikanti"].mape <= KORTHIKANTI_MEAN
    assert groups["megascale"].mape <= MEGASCALE_MEAN
    assert abs(groups["megascale"].worst) <= MEGASCALE_ROW


def test_the_score_is_the_mean_over_groups_not_over_rows():
    by_group = [np.mean([abs(r.error) for r in RESULT.rows if r.group == g.name])
                for g in RESULT.groups]  # fmt: skip
    assert RESULT.summary.mape == pytest.approx(np.mean(by_group))
    assert RESULT.summary.rows == 14
    assert RESULT.summary.skipped == 2
    assert {s.id for s in RESULT.skipped} == {"tpu", "moe"}


def test_every_row_has_an_interval_around_its_prediction():
    for row in RESULT.rows:
        assert row.p10_s < row.predicted_s < row.p90_s
        assert row.error == pytest.approx(row.predicted_s / row.measured_s - 1)


def test_memory_and_fits_are_scored():
    rows = [
        row | {"mem_peak_gib": "40", "fits": "1"} for row in read_rows(TABLE)
        if row["id"] == "kor-22b-selective"
    ]  # fmt: skip
    score = score_memory(cases_of(rows, fitted())[0])
    assert (score.rows, score.trials, score.right) == (1, 1, 1.0)
