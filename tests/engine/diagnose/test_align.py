"""Clock offsets, recovered from calls whose true ends are known."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.align import align
from engine.diagnose.eventlines import Line
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def span(name, end, length=10, step=0, kind="span", **attrs):
    return Line(kind, name, t_ns=end - length, step=step, dur_ns=length, attrs=attrs)


def fleet(offsets, jitter=0, steps=9):
    """Norms that end together on all ranks, seen on clocks that are `offsets` behind."""
    rng = random.Random(0)
    return {
        r: [
            span("clip", 1000 * (s + 1) - offset + rng.randint(-jitter, jitter), 5 + r, s)
            for s in range(steps)
        ]
        for r, offset in enumerate(offsets)
    }


@settings(max_examples=25)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=8, max_size=8))
def test_offsets_come_back_whatever_the_lengths_of_the_calls(offsets):
    found = align(fleet(offsets), {}, LAYOUT)
    assert found.shift_ns == {r: o - min(offsets) for r, o in enumerate(offsets)}
    assert found.residual_ns == 0
    assert found.unreached == ()


def test_what_is_left_after_shifting_is_the_residual():
    found = align(fleet([0] * 8, jitter=40, steps=99), {}, LAYOUT)
    assert max(found.shift_ns.values()) < 40
    assert 40 < found.residual_ns <= 80
    assert align(fleet([0, 500] + [0] * 6, steps=9), {}, LAYOUT).residual_ns == 0


def test_a_rank_without_a_common_call_keeps_its_wall_clock():
    lines = fleet([0] * 8)
    lines[5] = [span("forward", 77)]
    found = align(lines, {0: 100, 5: 350}, LAYOUT)
    assert found.unreached == (5,)
    assert found.shift_ns[5] == 250
    assert {found.shift_ns[r] for r in range(8) if r != 5} == {0}


def test_the_start_of_an_update_is_common_and_its_end_is_not():
    lines = {
        0: [span("optimizer", 1010, 10)],
        1: [span("optimizer", 1500, 200)],
    }
    assert align(lines, {}, ParallelLayout(dp=2)).shift_ns == {0: 300, 1: 0}


def test_the_nth_call_of_a_step_is_compared_with_the_nth():
    reduce = {"op": "all_reduce"}
    lines = {
        0: [span("tp_comm", e, step=s, **reduce) for s, e in ((0, 10), (0, 20), (1, 90))],
        1: [span("tp_comm", e, step=s, **reduce) for s, e in ((0, 110), (0, 120), (1, 190))],
    }
    assert align(lines, {}, ParallelLayout(tp=2)).shift_ns == {0: 100, 1: 0}


def test_tensor_calls_of_two_stages_have_nothing_in_common():
    lines = {r: [span("tp_comm", 10, op="all_reduce")] for r in (0, 1)}
    assert align(lines, {}, ParallelLayout(pp=2)).unreached == (1,)


def test_gathers_open_spans_and_other_names_do_not_count():
    lines = {
        r: [span("tp_comm", 10 + r, op="all_gather"), span("clip", 10, kind="open"),
            span("wait", 20, on="dp_reduce")]
        for r in (0, 1)
    }  # fmt: skip
    assert align(lines, {}, ParallelLayout(tp=2)).unreached == (1,)


def test_offsets_travel_over_ranks_in_between():
    """Ranks 0 and 3 of a 2 x 2 layout share no group; one of 1 and 2 joins them."""
    layout = ParallelLayout(tp=2, dp=2)
    lines = fleet([0, 7, 20, 33])
    assert align(lines, {}, layout).shift_ns == {0: 0, 1: 7, 2: 20, 3: 33}
    del lines[1], lines[2]
    assert align(lines, {}, layout).unreached == (3,)
