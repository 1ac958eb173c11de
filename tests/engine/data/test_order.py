import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.order import SampleOrder

GOLDEN_10 = [9, 4, 5, 6, 8, 1, 7, 3, 2, 0]
GOLDEN_BIG = [930701620392, 658232570186]


@given(st.integers(1, 1000), st.integers(0, 2**63), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_every_epoch_holds_every_sample_once(num, seed, epoch):
    order = SampleOrder(num, seed=seed)
    epochs, found = order.at(np.arange(num) + epoch * num)
    assert (epochs == epoch).all()
    assert sorted(found.tolist()) == list(range(num))


@given(
    st.integers(1, 2**61), st.integers(0, 2**32),
    st.lists(st.integers(0, 2**61), min_size=1, max_size=8),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_seeking_gives_what_reading_on_gives(num, seed, positions):
    order = SampleOrder(num, seed=seed)
    epochs, found = order.at(np.array(positions))
    for position, epoch, sample in zip(positions, epochs, found, strict=True):
        assert epoch == position // num
        assert 0 <= sample < num
        assert order.at(np.array([position]))[1][0] == sample


def test_without_shuffle_samples_come_in_their_order():
    epochs, found = SampleOrder(5, seed=3, shuffle=False).at(np.arange(12))
    assert found.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert epochs.tolist() == [0] * 5 + [1] * 5 + [2] * 2


def test_seeds_and_epochs_give_different_orders():
    at = np.arange(1000)
    one = SampleOrder(1000, seed=1).at(at)[1]
    assert (one == SampleOrder(1000, seed=2).at(at)[1]).mean() < 0.02
    assert (one == SampleOrder(1000, seed=1).at(at + 1000)[1]).mean() < 0.02


def test_the_shuffle_is_even():
    """Over many epochs each place sees every sample alike: chi-square within five deviations."""
    num, trials = 97, 20_000
    order = SampleOrder(num, seed=4)
    for place in (0, 13, 96):
        _, found = order.at(place + num * np.arange(trials))
        expected = trials / num
        square = ((np.bincount(found, minlength=num) - expected) ** 2 / expected).sum()
        assert abs(square - (num - 1)) < 5 * (2 * (num - 1)) ** 0.5


def test_neighbours_are_scattered():
    """Distances between successive samples are those of random ones: a third of the range."""
    num = 1_000_003
    _, found = SampleOrder(num, seed=5).at(np.arange(20_000))
    assert abs(np.abs(np.diff(found)).mean() / num - 1 / 3) < 0.01
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03


def test_the_order_never_changes_between_versions():
    """A run must be resumable by a later release: these numbers are part of the format."""
    assert SampleOrder(10, seed=1).at(np.arange(10))[1].tolist() == GOLDEN_10
    assert SampleOrder(10**12, seed=2).at(np.array([0, 10**13]))[1].tolist() == GOLDEN_BIG


@pytest.mark.parametrize("num", [0, -1, 2**62])
def test_impossible_sizes_are_refused(num):
    with pytest.raises(ValueError, match="num_samples"):
        SampleOrder(num, seed=1)
