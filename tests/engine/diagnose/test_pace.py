"""What slows a run, from hand-made seconds: cost, who, and what is too little to report."""

import numpy as np
import pytest
from arrays import make_spans

from engine.diagnose.pace import MIN_COST, find_pace, slow_finding
from engine.diagnose.straggler import Slow
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=4)


def noisy(seed=0, steps=20):
    return 1 + 0.005 * np.random.default_rng(seed).standard_normal((16, steps))


def test_a_steady_run_has_nothing_to_tell():
    assert find_pace(make_spans(LAYOUT, 20, forward=0.3 * noisy(), backward=0.6 * noisy(1))) == []


def test_too_few_steps_tell_nothing():
    assert find_pace(make_spans(LAYOUT, 2, forward=0.1, data=0.9)) == []
    assert len(find_pace(make_spans(LAYOUT, 4, forward=0.1, data=0.9))) == 1  # one is warm-up


def test_a_straggler_costs_its_excess_of_the_step():
    forward = 0.4 * noisy()
    forward[11] *= 1.25
    spans = make_spans(LAYOUT, 20, forward=forward, backward=0.4, wait_dp=0.2)
    (finding,) = find_pace(spans)
    assert (finding.kind, finding.ranks, finding.step) == ("straggler", (11,), 1)
    assert finding.cost == pytest.approx(0.1, abs=0.01)  # an eighth of 0.8 s in a step of 1 s
    assert "12." in finding.what
    assert "all the time" in finding.what
    assert finding.why.endswith("mostly forward")


def test_a_straggler_that_costs_less_than_a_per_cent_of_the_step_is_not_reported():
    backward = 0.1 * noisy()
    backward[3] *= 1.2
    slow = {"backward": backward, "wait_dp": 0.3}
    (finding,) = find_pace(make_spans(LAYOUT, 20, **slow))
    assert finding.why.endswith("mostly backward")
    assert find_pace(make_spans(LAYOUT, 20, **slow | {"wait_dp": 2.5})) == []


def test_a_pause_of_one_rank_holds_everybody():
    gc = np.zeros((16, 21), np.float32)
    gc[2, 4::4] = gc[9, 2::4] = 0.2
    (finding,) = find_pace(make_spans(LAYOUT, 21, forward=0.9, optimizer=0.1, gc=gc))
    assert (finding.category, finding.ranks) == ("perf_gc", (2, 9))
    # 10 of 20 steps are held for 0.2 s; the mean step of a rank is 1 s and its share of pauses
    assert finding.cost == pytest.approx(0.1, rel=0.03)
    assert "holds 50.0 % of the steps for 200 ms each" in finding.what
    assert "at different steps" in finding.why


def test_pauses_at_shared_steps_are_told_from_others():
    gc = np.zeros((16, 21), np.float32)
    gc[:, ::4] = 0.2
    (finding,) = find_pace(make_spans(LAYOUT, 21, forward=1.0, gc=gc))
    assert "collect together" in finding.why
    gc[:, ::4] = 0.2 * MIN_COST
    assert find_pace(make_spans(LAYOUT, 21, forward=1.0, gc=gc)) == []


def test_of_very_many_collecting_ranks_none_is_named():
    many = ParallelLayout(tp=17)
    (finding,) = find_pace(make_spans(many, 10, forward=1.0, gc=0.2))
    assert finding.ranks == ()
    (finding,) = find_pace(make_spans(ParallelLayout(tp=16), 10, forward=1.0, gc=0.2))
    assert finding.ranks == tuple(range(16))


def test_data_costs_what_the_slowest_rank_waits():
    data = np.zeros((16, 20), np.float32)
    data[6] = 0.1
    (finding,) = find_pace(make_spans(LAYOUT, 20, forward=0.9, wait_dp=0.1 - data, data=data))
    assert finding.category == "perf_data"
    assert finding.cost == pytest.approx(0.1)
    assert "rank 6: 100 ms a step" in finding.why
    data[6] = 0.049
    assert find_pace(make_spans(LAYOUT, 20, forward=0.9, wait_dp=0.1 - data, data=data)) == []


def test_a_node_and_a_drift_are_said_in_words():
    slow = Slow(tuple(range(8, 16)), "drift", 0.1, 0.2, 12.0, 0.004, 3)
    finding = slow_finding(slow, 0.07, "forward", 42)
    assert finding.what.startswith("ranks 8-15 (one node) computes 10.0 % longer")
    assert "now 20.0 %, growing 0.4 points a step; mostly forward" in finding.why
    assert (finding.step, finding.cost) == (42, 0.07)
    assert finding.confidence == pytest.approx(0.8)
    assert slow_finding(slow._replace(z=500.0), 0.07, "", 0).confidence == 0.99
    alone = slow_finding(slow._replace(ranks=(9,), pattern="bursts"), 0.07, "", 42)
    assert alone.what == "rank 9 computes 10.0 % longer than its peers, in bursts"
    assert (alone.evidence[0].rank, alone.evidence[0].text) == (9, "excess 10.0 % from step 42")
    drift = slow_finding(slow, 0.07, "", 42)
    assert drift.what.endswith("more and more"), "the decline of the step looks for these words"
