import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.peers import excess, places
from engine.diagnose.straggler import find_slow
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=8, pp=8, dp=16)
RANKS = np.arange(LAYOUT.world_size, dtype=np.int32)
AT = places(LAYOUT, RANKS)


def fleet(seed, noise=0.02, steps=60):
    rng = np.random.default_rng(seed)
    stage = np.where(AT.stage == 7, 1.12, 1.0)[:, None]
    sequences = 1 + 0.03 * rng.standard_normal((LAYOUT.dp, steps))[AT.replica]
    return (
        2.7 * stage * sequences * (1 + noise * rng.standard_normal((len(RANKS), steps)))
    ).astype(np.float32)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.005, 0.01, 0.02, 0.05]))
def test_a_healthy_fleet_has_no_straggler(seed, noise):
    assert find_slow(fleet(seed, noise), AT, RANKS) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 127))
def test_a_slow_node_is_found_and_nothing_else(seed, node):
    own = fleet(seed)
    own[8 * node : 8 * node + 8] *= 1.1
    slow = find_slow(own, AT, RANKS)
    assert [s.ranks for s in slow] == [tuple(range(8 * node, 8 * node + 8))]
    assert slow[0].excess == pytest.approx(0.1, abs=0.02)


def test_one_device_of_a_node_is_one_rank():
    own = fleet(3)
    own[77] *= 1.1
    assert [s.ranks for s in find_slow(own, AT, RANKS)] == [(77,)]


def test_bursts_that_a_median_forgives_are_found():
    own = fleet(4)
    own[40:48, 20:30] *= 1.2
    slow = find_slow(own, AT, RANKS)
    assert [(s.ranks[0] // 8, s.pattern) for s in slow] == [(5, "bursts")]
    assert slow[0].first == 20, "the column of its first slow step"
    assert slow[0].per_step == 0.0
    assert slow[0].z > 5, "of the mean, since the median forgives it"


def test_a_drift_names_its_slope():
    own = fleet(5)
    own[8:16] *= 1 + 0.2 * np.linspace(0, 1, 60, dtype=np.float32)
    (slow,) = find_slow(own, AT, RANKS)
    assert slow.pattern == "drift"
    assert slow.per_step == pytest.approx(0.2 / 59, rel=0.2)
    assert 10 <= slow.first <= 25, "half the mean excess, 5 %, is reached after a quarter"


def test_a_rank_that_recovers_is_no_drift():
    own = fleet(9)
    own[16:24] *= 1 + 0.2 * np.linspace(1, 0, 60, dtype=np.float32)
    (slow,) = find_slow(own, AT, RANKS)
    assert (slow.ranks[0], slow.pattern, slow.per_step) == (16, "constant", 0.0)
    assert slow.now < slow.excess


def test_stages_and_long_sequences_are_nobodys_fault():
    own = fleet(6)
    own[AT.replica == 3] *= 1.3
    own[AT.stage == 2] *= 2.0
    assert np.abs(np.median(excess(own, AT), axis=1)).max() < 0.03
    assert find_slow(own, AT, RANKS) == []


def test_a_rank_without_peers_is_not_judged():
    lonely = ParallelLayout(pp=4)
    ranks = np.arange(4, dtype=np.int32)
    own = np.array([[1.0], [1.0], [5.0], [1.0]], np.float32).repeat(20, axis=1)
    assert find_slow(own, places(lonely, ranks), ranks) == []


def test_of_two_peers_the_slower_one_is_named():
    pair = ParallelLayout(dp=2)
    ranks = np.arange(2, dtype=np.int32)
    rng = np.random.default_rng(0)
    own = (1 + 0.01 * rng.standard_normal((2, 30))).astype(np.float32)
    assert find_slow(own, places(pair, ranks), ranks) == []
    own[1] *= 1.1
    assert [s.ranks for s in find_slow(own, places(pair, ranks), ranks)] == [(1,)]


def test_the_one_that_costs_most_comes_first():
    own = fleet(11)
    own[40] *= 1.10
    own[300] *= 1.30
    own[512:520] *= 1.15  # a node weighs more than one rank that is as slow
    slow = find_slow(own, AT, RANKS)
    assert [s.ranks[0] for s in slow] == [512, 300, 40]


def test_a_node_is_named_when_half_its_ranks_are_a_little_slow():
    own = fleet(12, noise=0.01)
    own[64:68] *= 1.06
    (slow,) = find_slow(own, AT, RANKS)
    assert slow.ranks == tuple(range(64, 72))
