"""Months of a job: time adds up, the target is met at published rates, what should matter does."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.job.simulate import ENDLESS, MIX, World, simulate
from engine.spec.job import JobSpec

TARGET = 0.98
"""Of 90 days of 175B on 12,288 GPUs at Llama 3's rate of failures."""
SMALL = World(nodes=64, spares=2, days=20.0)


def changed(**fields) -> World:
    return msgspec.structs.replace(SMALL, **fields)


def test_the_mix_is_whole():
    assert sum(one.share for one in MIX) == pytest.approx(1.0)


def test_ninety_days_of_the_papers_job_lose_less_than_two_per_cent():
    months = simulate(World())
    assert months.effective >= TARGET
    assert months.ended == ""
    assert 400 < months.faults < 700, "3.79 per 1,000 node-days, 1,536 nodes, 90 days: 524"
    assert months.wrong_evictions <= months.evictions / 20


@settings(max_examples=15)
@given(
    st.integers(1, 5), st.integers(0, 3), st.sampled_from([60.0, 600.0]),
    st.sampled_from([1.0, 40.0]), st.sampled_from(["wait", "shrink"]),
)  # fmt: skip
def test_time_adds_up_to_the_whole(seed, spares, every, rate, choice):
    world = changed(seed=seed, spares=spares, ckpt_every_s=every, failures_per_1000_node_days=rate)
    job = msgspec.structs.replace(ENDLESS, without_spare=choice)
    m = simulate(world, job)
    lost = (
        m.lost_to_ckpt + m.lost_to_rework + m.lost_to_detection + m.lost_to_checks
        + m.lost_to_restarts + m.lost_to_waiting + m.lost_to_fewer_replicas
    )  # fmt: skip
    assert m.effective + lost == pytest.approx(1.0, abs=1e-9)
    assert 0 <= m.effective <= 1


def test_the_same_seed_gives_the_same_months_and_another_does_not():
    busy = changed(failures_per_1000_node_days=40.0)
    assert simulate(busy) == simulate(busy)
    assert simulate(busy) != simulate(msgspec.structs.replace(busy, seed=2))


def test_more_failures_longer_restarts_and_rarer_checkpoints_cost():
    busy = changed(failures_per_1000_node_days=40.0)
    base = simulate(busy).effective
    for worse in ({"restart_s": 600.0}, {"ckpt_every_s": 3600.0}, {"spares": 0}):
        assert simulate(msgspec.structs.replace(busy, **worse)).effective < base, worse
    assert simulate(SMALL).effective > base


def test_a_budget_that_is_used_up_ends_the_simulated_run_as_the_real_one():
    months = simulate(changed(failures_per_1000_node_days=40.0), JobSpec(restarts=3))
    assert "job.restarts = 3" in months.ended
