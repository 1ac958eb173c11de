from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import LayoutError
from engine.schedule.action import COMPUTE, SENDS, Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.simulate import simulate
from tests.engine.schedule.shapes import legal_shapes


def _exact(action: Action) -> float:
    """Forward one unit, backward two, messages nothing: floats hold these exactly."""
    return {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0}.get(action.kind, 0.0)


def _bubble(schedule) -> Fraction:
    """Idle over busy time in exact numbers."""
    run = simulate(schedule, _exact)
    busy = schedule.microbatches * schedule.vpp * 3
    return Fraction(run.makespan_s) / busy - 1


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6))
def test_the_bubble_is_exactly_p_minus_1_over_v_m(pp, vpp, rounds):
    m = pp * rounds
    kind = "interleaved" if vpp > 1 else "1f1b"
    assert _bubble(build(kind, pp, vpp, m)) == Fraction(pp - 1, vpp * m)


@pytest.mark.parametrize(
    ("pp", "vpp", "m", "bubble"),
    [(8, 6, 32, Fraction(7, 192)), (35, 3, 280, Fraction(34, 840)), (8, 1, 32, Fraction(7, 32))],
)
def test_the_papers_shapes(pp, vpp, m, bubble):
    assert _bubble(build("auto", pp, vpp, m)) == bubble
    if pp * vpp * m < 5000:
        assert _bubble(add_comm(build("auto", pp, vpp, m))) == bubble


@given(st.integers(1, 8), st.integers(1, 12))
def test_gpipe_has_the_bubble_of_1f1b(pp, m):
    assert _bubble(build("gpipe", pp, 1, m)) == Fraction(pp - 1, m)


@given(legal_shapes(), st.integers(0, 3))
def test_spans_of_a_lane_do_not_overlap_and_inputs_come_first(shape, transfer):
    schedule = add_comm(build(*shape))
    cost = {Kind.FORWARD: 2, Kind.BACKWARD: 4, Kind.BACKWARD_INPUT: 2, Kind.BACKWARD_WEIGHT: 2}

    def duration(action: Action) -> float:
        return cost.get(action.kind, transfer)

    run = simulate(schedule, duration)
    lanes: dict[tuple[int, str], float] = {}
    ends = {span.action: span.end_s for span in run.spans if span.action.kind in COMPUTE}
    for span in run.spans:
        key = (span.stage, span.lane)
        assert span.start_s >= lanes.get(key, 0.0)
        lanes[key] = span.end_s
    for span in run.spans:
        kind, chunk, m = span.action
        if kind is Kind.FORWARD and chunk:
            assert span.start_s >= ends[Action(Kind.FORWARD, chunk - 1, m)]
        elif kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            assert span.start_s >= ends[Action(Kind.FORWARD, chunk, m)]
            if chunk + 1 < schedule.chunks:
                assert span.start_s >= ends[Action(kind, chunk + 1, m)]
    assert len(ends) == sum(len(schedule.compute_order(stage)) for stage in range(schedule.pp))


@given(legal_shapes(), st.integers(0, 3))
def test_waits_and_work_add_up_to_each_stages_time(shape, transfer):
    schedule = add_comm(build(*shape))
    run = simulate(schedule, lambda a: 2.0 if a.kind in COMPUTE else float(transfer))
    for stage in range(schedule.pp):
        mine = [s for s in run.spans if s.stage == stage and s.lane == "compute"]
        waited = sum(w.end_s - w.start_s for w in run.waits if w.stage == stage)
        assert mine[-1].end_s == pytest.approx(waited + run.busy_s(stage))


@given(legal_shapes(), st.floats(0, 2))
def test_blocking_and_slower_messages_never_help(shape, transfer):
    schedule = add_comm(build(*shape), overlap_pp=False, overlap_dp=False)

    def duration(action: Action) -> float:
        return transfer if action.kind in SENDS else float(action.kind in COMPUTE)

    free = simulate(schedule, lambda a: float(a.kind in COMPUTE)).makespan_s
    eager = simulate(schedule, duration).makespan_s
    try:
        coupled = simulate(schedule, duration, blocking=True).makespan_s
    except LayoutError:  # coupled sends and receives may wait for one another
        coupled = eager
    assert free <= eager + 1e-9
    assert eager <= coupled + 1e-9


def test_a_deadlock_is_named():
    schedule = build("1f1b", 2, 1, 1)
    swapped = schedule.with_stages([schedule.stages[0], reversed(schedule.stages[1])])
    with pytest.raises(LayoutError) as error:
        simulate(swapped, lambda action: 1.0)
    assert error.value.what == (
        "the 1f1b schedule deadlocks: stage 0 before 0B0, stage 1 before 1B0"
    )
    assert "engine.schedule.verify" in error.value.remedy


def test_a_stage_at_its_end_is_not_called_stuck():
    schedule = build("1f1b", 2, 1, 1)
    forwards = schedule.with_stages([schedule.stages[0][:1], reversed(schedule.stages[1])])
    with pytest.raises(LayoutError) as error:
        simulate(forwards, lambda action: 1.0)
    assert error.value.what == "the 1f1b schedule deadlocks: stage 1 before 1B0"


def test_bubble_of_nothing_is_zero():
    assert simulate(build("gpipe", 1, 1, 1), lambda action: 0.0).bubble() == 0.0
    assert simulate(build("1f1b", 4, 1, 8), lambda a: 1.0).bubble() == pytest.approx(3 / 8)
