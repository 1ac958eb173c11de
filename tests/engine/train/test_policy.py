"""When a run saves: by steps, by the clock, by what a save costs, and at a spike."""

import itertools
import math

import pytest

from engine.spec.recipe import CkptSpec
from engine.train.policy import Policy, young_daly_s


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def reasons(policy: Policy, losses: list[float]) -> list[str]:
    return [policy.reason(i + 1, loss, asked=False) for i, loss in enumerate(losses)]


def test_by_steps():
    policy = Policy(CkptSpec(every=3))
    assert reasons(policy, [1.0] * 7) == ["", "", "interval", "", "", "interval", ""]
    assert reasons(Policy(CkptSpec()), [1.0] * 4) == [""] * 4


def test_the_interval_that_loses_least_is_a_minimum():
    """Time lost per second: cost / T for saving, T / 2 / M for redoing; the best T is known."""
    cost, mean = 2.0, 3600.0

    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / mean

    best = young_daly_s(cost, mean)
    assert best == pytest.approx(120.0)
    assert lost(best) < min(lost(0.9 * best), lost(1.1 * best))


def test_by_minutes():
    clock = Clock()
    policy = Policy(CkptSpec(every_minutes=2), clock=clock)
    clock.now = 119.0
    assert not policy.wish()
    clock.now = 120.0
    assert policy.wish()
    policy.saving()
    assert not policy.wish()


def test_auto_measures_first_and_never_outruns_the_store():
    policy = Policy(CkptSpec(auto=True, mtbf_h=1), clock=Clock())
    assert policy.interval_s == 0.0, "nothing is known before the first save"
    policy.stalled(0.5)
    assert policy.interval_s == pytest.approx(60.0)
    policy.flushed(100.0)
    assert policy.interval_s == pytest.approx(125.0)
    policy.stalled(0.0)
    policy.flushed(0.0)
    policy.stalled(0.0)
    assert policy.interval_s >= 1.0


def test_without_a_clock_rule_nobody_asks_it():
    policy = Policy(CkptSpec(every=5))
    assert policy.interval_s == math.inf
    assert not policy.wish()
    assert not any(policy.is_look_due(done) for done in range(100))


def test_ranks_ask_the_clock_at_steps_that_all_know():
    clock = Clock()
    policy = Policy(CkptSpec(every_minutes=1), clock=clock)
    asked = []
    for done in range(1, 301):
        clock.now += 1.0
        policy.reason(done, 1.0, asked=False)
        if policy.is_look_due(done):
            look = policy.next_look(done)
            if policy.wish():
                policy.saving()
                asked.append(done)
            assert look > done
            policy.look_at(look)
    assert len(asked) in (4, 5)
    assert all(60 <= b - a <= 62 for a, b in itertools.pairwise(asked))


def test_a_spike_is_told_from_noise_once():
    noise = [2.0 + 0.01 * (i % 3) for i in range(30)]
    policy = Policy(CkptSpec(spike=6))
    assert reasons(policy, noise) == [""] * 30
    assert policy.reason(31, 2.5, asked=False) == "loss spike"
    assert policy.reason(32, 2.6, asked=False) == "", "the same spike"
    assert reasons(policy, noise) == [""] * 30
    assert policy.reason(70, math.nan, asked=False) == ""
    assert policy.reason(71, 2.5, asked=False) == "loss spike"


def test_a_falling_loss_and_a_short_past_are_no_spikes():
    assert reasons(Policy(CkptSpec(spike=4)), [10.0 / (i + 1) for i in range(60)]) == [""] * 60
    assert reasons(Policy(CkptSpec(spike=4)), [1.0, 1.0, 9.0]) == [""] * 3
