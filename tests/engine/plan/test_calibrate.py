from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.calibrate import (
    Knob,
    backward,
    errors,
    fit,
    forward,
    get,
    ladder_points,
    points_of,
    put,
    refresh,
)  # fmt: skip
from engine.plan.profiles import fitted
from engine.plan.rows import read_rows
from engine.plan.validate import cases_of, predict

ROWS = read_rows(Path(__file__).with_name("runs.csv"))
SPEED = Knob("devices", "A100-80GB", "", 0.5)
HBM = Knob("physics", "", "hbm", 0.5, True)
SLOPE = Knob("profiles", "megascale", "slope", 0.3)


@given(st.floats(0.01, 0.99))
def test_coordinates_have_inverses(value):
    for knob in (SPEED, HBM):
        assert backward(knob, forward(knob, value)) == pytest.approx(value)


def test_unknowns_are_put_where_they_are_read():
    constants = put(fitted(), [SPEED, HBM, SLOPE], [0.5, 0.6, 1.5])
    assert [get(constants, k) for k in (SPEED, HBM, SLOPE)] == [0.5, 0.6, 1.5]
    assert get(fitted(), HBM) != 0.6


@pytest.mark.slow
def test_a_fit_finds_the_constant_that_made_the_data():
    truth = put(fitted(), [SPEED], [0.7 * get(fitted(), SPEED)])
    rows = [r for r in ROWS if r["id"].startswith(("kor-22b", "kor-175b"))]
    made = []
    for row, case in zip(rows, cases_of(rows, truth)[0], strict=True):
        made.append(row | {"iter_time_s": str(predict(case)[0])})
    points = points_of(made, fitted())
    constants = fitted()
    for _ in range(2):
        constants = fit(points, constants, [SPEED], rounds=2).constants
        points = refresh(points, constants)
    assert get(constants, SPEED) == pytest.approx(get(truth, SPEED), rel=0.03)
    assert np.abs(errors(points, constants)).max() < 0.02


@pytest.mark.slow
def test_without_its_rows_an_unknown_stays_at_its_prior():
    points = [p for p in points_of(ROWS, fitted()) if p.case.group != "megascale"]
    away = put(fitted(), [SLOPE], [1.3 * get(fitted(), SLOPE)])
    found = fit(points, away, [SLOPE], rounds=2, prior=fitted())
    assert get(found.constants, SLOPE) == pytest.approx(get(fitted(), SLOPE), rel=0.01)


def test_rows_of_table_3_are_points_of_their_own_group():
    points = ladder_points(fitted(), [0, 8])
    assert {p.case.group for p in points} == {"megascale-ablation"}
    assert [p.rung for p in refresh(points, fitted())] == [0, 8]
    assert np.abs(errors(points, fitted())).max() < 0.06
