import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.online import LIMIT, Stream, forecast
from engine.diagnose.peers import places
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=8, pp=4, dp=8)
RANKS = np.arange(LAYOUT.world_size, dtype=np.int32)
AT = places(LAYOUT, RANKS)


def fleet(seed, steps, noise=0.01):
    rng = np.random.default_rng(seed)
    return (1 + noise * rng.standard_normal((len(RANKS), steps))).astype(np.float32)


def test_a_trend_is_told_before_it_reaches_the_limit():
    own = fleet(1, 200)
    own[37] *= 1 + np.arange(200, dtype=np.float32) * 0.0004  # passes 5 % at step 125
    stream = Stream(AT, RANKS)
    warned = None
    for step in range(200):
        stream.push(own[:, step])
        if step % 8 == 7 and warned is None:
            found = stream.check().forecasts
            if found:
                warned = step
                assert [f.rank for f in found] == [37]
                assert step + found[0].steps_left == pytest.approx(125, abs=40)
    assert warned is not None
    assert warned < 125


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_a_steady_fleet_warns_of_nobody(seed):
    assert forecast(fleet(seed, 64), AT, RANKS) == []


def test_a_constant_straggler_is_no_forecast_but_a_finding():
    own = fleet(2, 64)
    own[5] *= 1.1
    stream = Stream(AT, RANKS)
    for step in range(64):
        stream.push(own[:, step])
    warned = stream.check()
    assert [s.ranks for s in warned.slow] == [(5,)]
    assert warned.forecasts == ()


def test_the_window_forgets_what_is_over():
    own = fleet(3, 160)
    own[9, :40] *= 1.2
    stream = Stream(AT, RANKS, window=64)
    for step in range(160):
        stream.push(own[:, step])
    assert stream.steps == 64
    assert stream.check().slow == ()
    assert LIMIT == 0.05
