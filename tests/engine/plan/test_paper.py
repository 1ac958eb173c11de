import pytest

from engine.plan.paper import (
    DISCREPANCIES,
    FIGURE_9,
    TABLE_2,
    TABLE_3,
    ladder,
    line,
    strong_scaling,
)  # fmt: skip

ROWS = strong_scaling()
EACH, MEAN, LARGEST, SLOPE, INTERCEPT = 0.06, 0.04, 0.04, 0.04, 0.15
GAIN, TOTAL = 0.010, 0.015


@pytest.mark.parametrize("system", list(TABLE_2))
def test_table_2_is_predicted_row_by_row(system):
    errors = {r.gpus: r.predicted_s / r.published_s - 1 for r in ROWS if r.system == system}
    assert max(map(abs, errors.values())) <= EACH
    assert sum(map(abs, errors.values())) / len(errors) <= MEAN
    assert abs(errors[12288]) <= LARGEST


@pytest.mark.parametrize("system", list(TABLE_2))
def test_slope_and_intercept_are_right_for_themselves(system):
    a, b, c, d = line([r for r in ROWS if r.system == system])
    assert c == pytest.approx(a, rel=SLOPE)
    assert d == pytest.approx(b, rel=INTERCEPT)


def test_the_published_lines_are_those_of_the_table():
    megatron = line([r for r in ROWS if r.system == "megatron-2023"])
    assert megatron[0] == pytest.approx(0.2, abs=0.005)
    assert megatron[1] == pytest.approx(2.25, abs=0.05)


def test_each_change_of_table_3_brings_about_what_was_published():
    found = ladder()
    assert found.worst_gain_error <= GAIN
    assert found.worst_total_error <= TOTAL
    assert [r.published for r in found.rungs] == [mfu for _, mfu in TABLE_3]
    assert all(r.predicted_gain >= 0 for r in found.rungs)


def test_tables_are_consistent_with_themselves():
    for rows in TABLE_2.values():
        for gpus, batch, seconds, mfu in rows:
            flops = 1.0774e12 * batch * 2048 / (seconds * gpus * 312e12)
            assert flops == pytest.approx(mfu, rel=0.016)
    assert all(len(rows) == 3 for rows in FIGURE_9.values())
    assert len(DISCREPANCIES) == 4


def test_four_steps_in_one_remove_three_quarters_of_the_bubble():
    def bubble(p, v, m):
        return (p - 1) / (v * m)

    assert bubble(8, 6, 4 * 32) / bubble(8, 6, 32) == pytest.approx(1 - 0.75)
