"""A slow rank is named once, when it was slow in most steps; noise and small groups name nobody."""

import random

import pytest

from engine.job.slow import SlowWatch
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def works(step: int, rng: random.Random, *, slow: dict[int, float]):
    return [
        (rank, step, 1.0, 0.2 * slow.get(rank, 1.0) * rng.uniform(0.97, 1.03))
        for rank in range(LAYOUT.world_size)
    ]


def told(steps: int, slow_from: int, slow: dict[int, float], layout=LAYOUT):
    watch, rng, found = SlowWatch(layout), random.Random(3), []
    for step in range(steps):
        one = watch.look(works(step, rng, slow=slow if step >= slow_from else {}))
        if one is not None:
            found.append((step, one))
    return found


def test_a_slow_rank_is_named_once():
    ((step, found),) = told(120, 30, {5: 2.0})
    assert found.ranks == (5,)
    assert 30 < step < 75
    assert found.excess > 0.5
    assert "rank 5 needs" in found.what


def test_healthy_ranks_are_left_alone():
    assert told(200, 0, {}) == []


def test_one_long_pause_is_not_slowness():
    watch, rng = SlowWatch(LAYOUT), random.Random(4)
    for step in range(100):
        slow = {2: 40.0} if step % 25 == 0 else {}
        assert watch.look(works(step, rng, slow=slow)) is None


def test_two_peers_cannot_say_which_of_them_is_slow():
    layout = ParallelLayout(dp=2)
    watch = SlowWatch(layout)
    for step in range(100):
        assert watch.look([(0, step, 1.0, 0.2), (1, step, 1.0, 0.9)]) is None


def busy(steps: int, slow: dict[int, float], seed: int):
    """Own work as eight ranks have it on two busy cores: each is slow in a fifth of all steps."""
    watch, rng, found = SlowWatch(LAYOUT), random.Random(seed), []
    for step in range(steps):
        row = [(rank, step, 1.0, 0.1 * slow.get(rank, 1.0) * rng.lognormvariate(0.0, 0.35))
               for rank in range(LAYOUT.world_size)]  # fmt: skip
        one = watch.look(row)
        if one is not None:
            found.append(one.ranks)
    return found


@pytest.mark.slow
def test_on_a_busy_machine_nobody_is_named_but_who_is_slow_all_the_time():
    for seed in range(3):
        assert busy(1500, {}, seed) == []
        assert busy(120, {6: 3.0}, seed) == [(6,)]
