"""Open spans as waits: for whom each kind of span stands."""

import pytest
from arrays import make_spans, tail_of

from engine.diagnose.eventlines import Line
from engine.diagnose.openspans import open_waits
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=3, dp=2)
"""Rank 6 is tp 0, dp 1, pp 1: its neighbours are 7 (tp), 4 (dp), 2 and 10 (pp)."""


def opened(name, t_ns=0, step=6, dur_s=30, **attrs):
    return Line("open", name, t_ns=t_ns, step=step, dur_ns=dur_s * 10**9, attrs=attrs)


def waits(at, layout=LAYOUT, **tails):
    tails = {r: tail_of(layout, r, opened=lines) for r, lines in at.items()}
    spans = make_spans(layout, 2)
    return open_waits(spans._replace(tails=tails))


@pytest.mark.parametrize(
    ("name", "attrs", "targets"),
    [
        ("wait", {"on": "pp_f"}, {2}), ("wait", {"on": "pp_b"}, {10}),
        ("recv_f", {}, {2}), ("recv_b", {}, {10}), ("send_f", {}, {10}), ("send_b", {}, {2}),
        ("wait", {"on": "dp_reduce"}, {4}), ("wait", {"on": "dp_gather"}, {4}),
        ("unshard", {}, {4}), ("reduce_grad", {}, {4}),
        ("wait", {"on": "tp"}, {7}), ("tp_comm", {"op": "all_reduce"}, {7}),
        ("tied", {}, {2, 10}),
        ("clip", {}, set(range(12)) - {6}), ("wait", {"on": "snapshot"}, set(range(12)) - {6}),
        ("forward", {}, set()), ("data", {}, set()), ("wait", {}, set()),
    ],
)  # fmt: skip
def test_each_span_waits_for_who_has_to_arrive(name, attrs, targets):
    assert waits({6: [opened(name, **attrs)]})[6].waits_for == targets


@pytest.mark.parametrize(("rank", "on", "target"), [(0, "pp_f", 8), (8, "pp_b", 0)])
def test_the_pipeline_is_a_ring_since_chunks_wrap_around(rank, on, target):
    assert waits({rank: [opened("wait", on=on)]})[rank].waits_for == {target}


def test_the_innermost_open_span_counts_and_tells_where():
    inner = opened("wait", t_ns=50, dur_s=7, on="pp_f", chunk=3, microbatch=0)
    state = waits({6: [opened("step", t_ns=0, dur_s=90), inner, opened("forward", t_ns=20)]})[6]
    assert state.at == "step 6 wait on pp_f chunk 3 microbatch 0"
    assert (state.age_s, state.file, state.silent) == (7.0, "rank-6", False)


def test_members_in_the_same_call_do_not_wait_for_one_another():
    layout = ParallelLayout(dp=4)
    same = [opened("wait", on="dp_reduce")]
    states = waits({0: same, 1: same, 2: same, 3: [opened("data")]}, layout)
    assert {r: set(s.waits_for) for r, s in states.items()} == {0: {3}, 1: {3}, 2: {3}, 3: set()}


def test_if_all_members_are_in_the_call_they_all_wait_for_all():
    same = [opened("wait", on="dp_reduce")]
    states = waits(dict.fromkeys(range(3), same), ParallelLayout(dp=3))
    assert states[0].waits_for == {1, 2}


def test_a_member_in_a_later_step_has_passed_the_call():
    states = waits(
        {0: [opened("wait", on="dp_reduce")], 1: [opened("wait", step=7, on="dp_reduce")]},
        ParallelLayout(dp=2),
    )
    assert states[0].parted_from == {1}
    assert states[1].parted_from == frozenset()


def test_a_rank_without_open_spans_is_silent_once_it_is_older_than_the_dumps():
    layout = ParallelLayout(dp=4)
    tails = {
        0: tail_of(layout, 0, opened=[opened("wait", on="dp_reduce")], wall_s=100),
        1: tail_of(layout, 1, wall_s=99.5, step=6, name="forward"),
        2: tail_of(layout, 2, wall_s=90, step=6, name=""),
        3: tail_of(layout, 3, wall_s=90, ended=True),
    }
    states = open_waits(make_spans(layout, 2)._replace(tails=tails))
    assert sorted(states) == [0, 1, 2]
    assert (states[1].silent, states[2].silent) == (False, True)
    assert states[1].at == "step 6 after forward"
    assert states[2].at == "step 6 after start"
    assert states[2].age_s == 10.0


def test_a_run_without_dumps_has_no_waits():
    assert waits({0: [], 1: []}) == {}


def test_a_start_that_hangs_waits_for_who_is_busy_by_itself():
    layout = ParallelLayout(dp=4)
    resume = opened("start", step=-1, phase="resume")
    told = [resume, opened("wait", t_ns=5, step=-1, on="world")]
    states = waits({0: told, 1: [resume], 2: told, 3: told}, layout)
    assert {r: set(s.waits_for) for r, s in states.items()} == {0: {1}, 1: set(), 2: {1}, 3: {1}}
    assert (states[1].at, states[0].at) == ("start resume", "start resume, wait on world")


def test_who_meets_waits_for_who_has_not_come():
    layout = ParallelLayout(dp=4)
    meet = [opened("start", step=-1, phase="meet")]
    busy = [opened("start", step=-1, phase="build")]
    states = waits({0: meet, 1: meet, 2: meet, 3: busy}, layout)
    assert {r: set(s.waits_for) for r, s in states.items()} == {0: {3}, 1: {3}, 2: {3}, 3: set()}
