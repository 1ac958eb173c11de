"""What a rank's time should be, against numpy's median and against hand-made fleets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.peers import Places, _group_medians, excess, expected, places
from engine.spec.layout import ParallelLayout


def column(*values):
    return np.array(values, np.float32)[:, None]


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_places_are_those_of_the_layout(tp, pp, dp):
    layout = ParallelLayout(tp=tp, pp=pp, dp=dp)
    at = places(layout, np.arange(layout.world_size, dtype=np.int32))
    coords = [layout.coord(r) for r in range(layout.world_size)]
    assert at.stage.tolist() == [c.pp for c in coords]
    assert at.replica.tolist() == [c.dp for c in coords]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 99))
def test_the_median_of_a_group_is_numpys_but_of_two_peers_the_quicker(group, seed):
    values = np.random.default_rng(seed).random((len(group), 3)).astype(np.float32)
    numbers = np.array(group, np.int32)
    medians = _group_medians(values, numbers)
    assert medians.shape == (max(group) + 1, 3)
    for number in set(group):
        members = values[numbers == number]
        right = members.min(axis=0) if len(members) == 2 else np.median(members, axis=0)
        assert medians[number] == pytest.approx(right)


def test_a_stage_is_its_own_standard():
    at = Places(np.array([0, 0, 0, 1, 1, 1], np.int32), np.array([0, 1, 2, 0, 1, 2], np.int32))
    own = column(1.0, 1.0, 1.5, 3.0, 3.0, 3.0)
    assert expected(own, at)[:, 0].tolist() == [1, 1, 1, 3, 3, 3]
    assert excess(own, at)[:, 0].tolist() == [0, 0, 0.5, 0, 0, 0]


def test_what_a_replica_has_in_common_is_nobodys_fault():
    replica = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2], np.int32)
    stage = np.array([0, 1, 2] * 3, np.int32)
    own = column(1, 1, 1, 1.5, 1.5, 3.0, 1, 1, 1)  # replica 1 has long sequences, one rank is slow
    over = excess(own, Places(stage, replica))[:, 0]
    assert over == pytest.approx([0, 0, 0, 0, 0, 1.0, 0, 0, 0])


def test_a_replica_of_two_ranks_is_not_taken_out():
    stage, replica = np.array([0, 1] * 3, np.int32), np.array([0, 0, 1, 1, 2, 2], np.int32)
    over = excess(column(1, 1, 2, 2, 1, 1), Places(stage, replica))[:, 0]
    assert over == pytest.approx([0, 0, 1, 1, 0, 0])


def test_a_rank_without_a_peer_is_not_judged():
    at = Places(np.array([0, 0, 1], np.int32), np.array([0, 1, 0], np.int32))
    assert excess(column(1, 2, 9), at)[:, 0].tolist() == [0, 1, 0]


def test_peers_that_do_nothing_and_missing_numbers_give_zeros_and_no_infinities():
    at = Places(np.zeros(4, np.int32), np.arange(4, dtype=np.int32))
    assert excess(column(0, 0, 0, 0), at)[:, 0].tolist() == [0] * 4
    assert excess(column(0, 0, 0, 2), at)[:, 0].tolist() == [0] * 4
    with np.errstate(invalid="ignore"):
        assert np.isfinite(excess(column(np.nan, 1, 1, np.inf), at)).all()


@settings(max_examples=15)
@given(st.integers(0, 99), st.floats(0.1, 1000))
def test_a_fleet_that_is_slower_as_a_whole_has_the_same_excess(seed, factor):
    at = places(ParallelLayout(tp=4, pp=2, dp=2), np.arange(16, dtype=np.int32))
    own = (1 + np.random.default_rng(seed).random((16, 5))).astype(np.float32)
    assert excess(own * np.float32(factor), at) == pytest.approx(excess(own, at), abs=1e-4)
