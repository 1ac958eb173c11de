"""The learning rate: its end points, its shape, its monotony."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.optim.schedule import learning_rate
from engine.spec.recipe import OptimSpec

TOTAL = 100
SPEC = OptimSpec(lr=1e-3, min_lr=1e-4, warmup_steps=10)


def rates(spec: OptimSpec, total: int = TOTAL) -> list[float]:
    return [learning_rate(spec, step, total=total) for step in range(total)]


def test_warm_up_is_linear_and_ends_at_the_peak():
    found = rates(SPEC)[:10]
    assert found == pytest.approx([1e-3 * (i + 1) / 10 for i in range(10)])
    assert learning_rate(SPEC, 10, total=TOTAL) == 1e-3


def test_the_decay_ends_at_the_minimum_and_stays_there():
    assert learning_rate(SPEC, TOTAL, total=TOTAL) == pytest.approx(1e-4)
    assert learning_rate(SPEC, 5 * TOTAL, total=TOTAL) == pytest.approx(1e-4)


def test_cosine_is_half_way_down_in_the_middle():
    assert learning_rate(SPEC, 55, total=TOTAL) == pytest.approx((1e-3 + 1e-4) / 2)
    quarter = 1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi / 4))
    assert learning_rate(SPEC, 10 + 90 // 4, total=TOTAL) == pytest.approx(quarter, rel=0.01)


def test_linear_falls_by_equal_steps():
    spec = OptimSpec(lr=1e-3, min_lr=1e-4, warmup_steps=10, decay="linear")
    found = rates(spec)[10:]
    falls = [a - b for a, b in pairwise(found)]
    assert falls == pytest.approx([9e-4 / 90] * 89)


def test_constant_stays_at_the_peak_after_warm_up():
    spec = OptimSpec(lr=1e-3, warmup_steps=10, decay="constant")
    assert set(rates(spec)[10:]) == {1e-3}


def test_decay_steps_end_before_the_run_does():
    spec = OptimSpec(lr=1e-3, min_lr=1e-4, warmup_steps=10, decay_steps=50)
    assert learning_rate(spec, 50, total=TOTAL) == pytest.approx(1e-4)
    assert learning_rate(spec, 30, total=TOTAL) == pytest.approx((1e-3 + 1e-4) / 2)


def test_without_warm_up_the_first_rate_is_the_peak():
    assert learning_rate(OptimSpec(lr=1e-3), 0, total=TOTAL) == 1e-3


@given(
    st.integers(0, 20), st.integers(21, 60), st.sampled_from(["cosine", "linear", "constant"]),
    st.floats(0.0, 1e-3),
)  # fmt: skip
def test_it_rises_then_never_rises_again_and_stays_in_bounds(warmup, decay_steps, decay, minimum):
    spec = OptimSpec(
        lr=1e-3, min_lr=minimum, warmup_steps=warmup, decay_steps=decay_steps, decay=decay
    )
    found = rates(spec)
    up, down = found[:warmup], found[warmup:]
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert all(0 < r <= 1e-3 for r in up)
    assert all(minimum <= r * (1 + 1e-12) and r <= 1e-3 for r in down)
