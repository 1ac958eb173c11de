"""Where the step time went, from hand-made seconds."""

import numpy as np
import pytest
from arrays import make_spans, tail_of

from engine.diagnose.times import own_work, steady, step_times
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def test_the_first_step_is_left_out_only_where_others_are_there():
    assert steady(make_spans(LAYOUT, 3, forward=1.0)).tolist() == [False, True, True]
    assert steady(make_spans(LAYOUT, 2, forward=1.0)).tolist() == [True, True]


def test_a_step_that_no_rank_completed_does_not_count():
    spans = make_spans(LAYOUT, 5, forward=1.0)
    spans.step_s[:, 0] = spans.step_s[:, 4] = np.nan
    spans.step_s[3, 2] = np.nan  # the others completed it
    assert steady(spans).tolist() == [False, False, True, True, False]


def test_own_work_is_the_sum_of_the_parts_asked_for():
    spans = make_spans(LAYOUT, 4, forward=1.0, backward=2.0, data=0.5, optimizer=0.25, wait_dp=9.0)
    assert own_work(spans).tolist() == [[3.75] * 3] * 8
    assert own_work(spans, ("forward", "wait_dp")).tolist() == [[10.0] * 3] * 8


def test_parts_are_means_over_ranks_and_steps_and_shares_sum_to_one():
    forward = np.ones((8, 4), np.float32)
    forward[:, 0] = 100.0  # warm-up
    forward[5] = 3.0
    times = step_times(make_spans(LAYOUT, 4, forward=forward, wait_dp=0.75))
    assert (times.steps, times.ranks) == ((1, 3), 8)
    assert [(p.name, p.seconds) for p in times.parts] == [("forward", 1.25), ("wait_dp", 0.75)]
    assert times.step_s == 2.0
    assert sum(p.share for p in times.parts) == pytest.approx(1)
    assert times.notes == ()


def test_ranks_come_worst_first_with_their_place():
    forward = np.ones((8, 4), np.float32)
    forward[5] = 1.5
    forward[2] = 1.25
    rows = step_times(make_spans(LAYOUT, 4, forward=forward, wait_pp=0.5)).per_rank
    assert [r.rank for r in rows[:3]] == [5, 2, 0]
    assert (rows[0].tp, rows[0].pp, rows[0].dp) == (1, 1, 0)
    assert rows[0].excess == pytest.approx(0.5)
    assert rows[0].parts_s == {"forward": 1.5, "wait_pp": 0.5}
    assert rows[0].step_s == 2.0


def test_a_fleet_lists_its_worst_sixty_four():
    assert len(step_times(make_spans(ParallelLayout(tp=8, dp=9), 3, forward=1.0)).per_rank) == 64


def test_no_complete_step_has_no_times():
    spans = make_spans(LAYOUT, 4, forward=1.0)
    spans.step_s[:] = np.nan
    assert step_times(spans) is None


def test_notes_say_what_makes_the_numbers_weak():
    dropped = {1: tail_of(LAYOUT, 1, dropped=3), 6: tail_of(LAYOUT, 6, dropped=4)}
    (note,) = step_times(make_spans(LAYOUT, 4, tails=dropped, forward=1.0)).notes
    assert note.startswith("7 events were dropped")
    (note,) = step_times(make_spans(ParallelLayout(pp=2), 4, forward=1.0)).notes
    assert "no rank has a peer" in note
    assert step_times(make_spans(ParallelLayout(), 4, forward=1.0)).notes == ()
