"""Hangs, silence, spikes: judged from beats and the driver's clock alone."""

import pytest

from engine.health.heartbeat import RankBeat
from engine.job.detect import HangWatch, Pace, Silence, Spikes
from engine.spec.job import JobSpec

JOB = JobSpec(hang_s=5.0, hang_steps=3.0, start_s=60.0, lost_s=2.5, grace_s=30.0)


def beats(age_s: float, *, doing="step/wait", actions=5, health="runs", ranks=4, culprit=-1):
    """Ranks that wait for the culprit, which stands somewhere in its own work."""
    return {
        rank: RankBeat(
            rank=rank, doing="step/forward" if rank == culprit else doing, age_s=age_s,
            actions=actions,
            health=health if rank == culprit else "runs",
        )
        for rank in range(ranks)
    }  # fmt: skip


def learnt(step_s: float = 0.5) -> Pace:
    pace = Pace(JOB, 60.0)
    for _ in range(5):
        pace.step(step_s)
    return pace


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.1, 5.0), (1.0, 5.0), (4.0, 12.0)])
def test_a_step_is_hung_after_three_of_its_kind_but_not_before_five_seconds(step_s, limit_s):
    watch = HangWatch(learnt(step_s), 0.0)
    assert watch.judge(beats(0.0, culprit=1), 0.0) is None
    assert watch.judge(beats(limit_s - 0.1, culprit=1), limit_s - 0.1) is None
    hung = watch.judge(beats(limit_s + 0.1, culprit=1), limit_s + 0.1)
    assert hung is not None
    assert (hung.deadline_s, hung.ranks) == (limit_s, ())


def test_ranks_that_all_wait_may_wait_for_a_link_and_get_twice_the_time():
    watch = HangWatch(learnt(), 0.0)
    watch.judge(beats(0.0), 0.0)
    assert watch.judge(beats(9.9), 9.9) is None, "a cut of three seconds is over by now"
    assert watch.judge(beats(10.1), 10.1) is not None


def test_the_rank_that_is_stopped_or_silent_is_named():
    for health in ("stopped", "silent"):
        watch = HangWatch(learnt(), 0.0)
        watch.judge(beats(0.0), 0.0)
        hung = watch.judge(beats(6.0, health=health, culprit=2), 6.0)
        assert hung is not None
        assert hung.ranks == (2,)


def test_a_slow_step_in_which_spans_still_end_is_not_hung_until_it_is_very_late():
    watch = HangWatch(learnt(), 0.0)
    for second in range(60):
        assert watch.judge(beats(float(second), actions=second), float(second)) is None
    assert watch.judge(beats(61.0, actions=61), 61.0) is not None


def test_before_the_pace_is_known_a_start_has_its_own_deadline():
    watch = HangWatch(Pace(JOB, 60.0), 0.0)
    assert watch.judge(beats(0.0, doing="", actions=0), 59.0) is None
    assert watch.judge(beats(0.0, doing="", actions=0), 61.0) is not None


def test_a_checkpoint_or_validation_is_no_step():
    for doing in ("checkpoint", "eval/forward"):
        watch = HangWatch(learnt(), 0.0)
        assert watch.judge(beats(50.0, doing=doing), 50.0) is None
        assert watch.judge(beats(121.0, doing=doing), 121.0) is not None


def test_a_validation_takes_as_long_as_it_needs_while_something_moves():
    watch = HangWatch(learnt(), 0.0)
    for minute in range(1, 120):
        now = 60.0 * minute
        assert watch.judge(beats(now, doing="eval/forward", actions=minute), now) is None
    assert watch.judge(beats(now + 300.0, doing="eval/forward", actions=119), now + 300.0)


def test_a_save_within_the_step_may_take_what_the_store_is_given():
    pace = Pace(JOB, 60.0, save_s=900.0)
    assert Pace(JOB, 60.0).deadline_s("checkpoint") == JOB.start_s, "no step was seen yet"
    for _ in range(5):
        pace.step(1.0)
    assert (pace.deadline_s("checkpoint"), pace.deadline_s("eval/forward")) == (900.0, 60.0)
    assert pace.deadline_s("sdc/forward") == pace.deadline_s("step/forward")


def test_ranks_that_ended_do_not_hang():
    watch = HangWatch(learnt(), 0.0)
    ended = {0: RankBeat(rank=0, code=0, doing="step", age_s=99.0, health="ended")}
    assert watch.judge(ended, 99.0) is None


def test_a_silent_node_is_lost_when_the_job_makes_no_steps():
    silence = Silence(JOB)
    silence.heard("a", 10.0)
    assert not silence.is_lost("a", 12.4, carries=True)
    assert silence.is_lost("a", 12.6, carries=True)


def test_a_silent_node_whose_job_makes_steps_is_waited_for():
    """Cut off from Redis only: its ranks take part in every step."""
    silence = Silence(JOB)
    silence.heard("a", 0.0)
    for second in range(30):
        silence.stepped(second, float(second))
        assert not silence.is_lost("a", float(second), carries=True)
    silence.stepped(31, 31.0)
    assert silence.is_lost("a", 31.0, carries=True), "the grace is over"
    assert silence.is_lost("a", 5.0, carries=False), "a spare has no steps that prove it"


def test_a_job_with_long_steps_proves_its_nodes_for_longer():
    silence = Silence(JOB)
    silence.heard("a", 0.0)
    silence.stepped(1, 1.0, usual_s=4.0)
    assert not silence.is_lost("a", 12.0, carries=True)
    assert silence.is_lost("a", 13.5, carries=True)


def test_a_lost_redis_is_no_node_s_fault():
    silence = Silence(JOB)
    silence.heard("a", 0.0)
    silence.pause(100.0)
    assert not silence.is_lost("a", 101.0, carries=True)


def test_a_spike_stands_out_and_does_not_become_the_past():
    spikes = Spikes(3.0, window=8)
    assert not any(spikes.is_spike(2.0) for _ in range(8))
    assert spikes.is_spike(6.5)
    assert spikes.is_spike(6.5)
    assert not spikes.is_spike(5.9)
    assert not any(Spikes(0.0).is_spike(x) for x in (1.0, 1e9))


def test_the_wait_for_the_last_save_is_no_start_and_has_its_own_limit():
    pace = Pace(JOB, 60.0, 600.0)
    assert pace.deadline_s("finish") == pace.deadline_s("finish/wait") == 600.0 + JOB.start_s
    assert pace.deadline_s("start/wait") == pace.deadline_s("") == JOB.start_s
