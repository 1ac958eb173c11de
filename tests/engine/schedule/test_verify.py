import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import LayoutError
from engine.schedule.action import COMPUTE, Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.verify import peak_activations, problems, verify
from tests.engine.schedule.shapes import legal_shapes


@given(legal_shapes(), st.booleans(), st.booleans(), st.booleans())
def test_every_legal_shape_is_safe(shape, overlap_pp, overlap_dp, dp):
    plain = build(*shape)
    assert verify(plain) is plain
    verify(add_comm(plain, overlap_pp=overlap_pp, overlap_dp=overlap_dp, dp=dp))


@given(st.integers(1, 8), st.integers(1, 20))
def test_peak_activations_of_1f1b_and_gpipe(pp, m):
    one, all_ = build("1f1b", pp, 1, m), build("gpipe", pp, 1, m)
    for stage in range(pp):
        assert peak_activations(one, stage) == min(m, pp - stage)
        assert peak_activations(all_, stage) == m


@given(st.integers(1, 8), st.integers(2, 5), st.integers(1, 4))
def test_peak_activations_of_interleaved(pp, vpp, rounds):
    m = pp * rounds
    schedule = build("interleaved", pp, vpp, m)
    for stage in range(pp):
        ahead = (vpp - 1) * pp + 2 * (pp - 1 - stage) + 1
        assert peak_activations(schedule, stage) == min(m * vpp, ahead)


def _mutate(schedule, stage, change):
    """The schedule with one stage's list changed in place by `change`."""
    stages = [list(actions) for actions in schedule.stages]
    change(stages[stage])
    return schedule.with_stages(stages)


def _swap(actions, first, second):
    i, j = actions.index(first), actions.index(second)
    actions[i], actions[j] = actions[j], actions[i]


BASE = add_comm(build("interleaved", 2, 2, 4))


def _a(text: str) -> Action:
    return Action.parse(text)


@pytest.mark.parametrize(
    ("stage", "change", "fault"),
    [(0, lambda s: _swap(s, _a("0SEND_F0"), _a("0SEND_F1")), "sent in order"),
     (1, lambda s: s.remove(_a("1RECV_F0")), "stage 1: 1F0 has no 1RECV_F0"),
     (1, lambda s: _swap(s, _a("1RECV_F2"), _a("1RECV_F3")), "received in order"),
     (0, lambda s: s.remove(_a("0SEND_F2")), "stage 0: 0F2 has no 0SEND_F2"),
     (0, lambda s: s.append(_a("0F3")), "0F3 occurs 2 times"),
     (0, lambda s: s.remove(_a("2B1")), "2B1 is missing"),
     (0, lambda s: s.append(_a("0F9")), "0F9 is not part of the step"),
     (0, lambda s: s.append(_a("1F0")), "whose chunk lives on stage 1"),
     (0, lambda s: s.append(_a("9F0")), "but there are 4 chunks"),
     (0, lambda s: _swap(s, _a("0F0"), _a("0B0")), "0B0 comes before 0F0"),
     (0, lambda s: s.remove(_a("2UNSHARD")), "2UNSHARD is missing"),
     (0, lambda s: s.remove(_a("0REDUCE_GRAD")), "0REDUCE_GRAD is missing"),
     (0, lambda s: _swap(s, _a("0UNSHARD"), _a("0F1")), "0F1 comes before 0UNSHARD"),
     (1, lambda s: s.insert(0, s.pop(s.index(_a("1REDUCE_GRAD")))), "comes before 1B"),
     (1, lambda s: s.insert(0, s.pop(s.index(_a("1SEND_F0")))), "1SEND_F0 comes before 1F0")],
)  # fmt: skip
def test_a_broken_program_is_refused_with_its_fault(stage, change, fault):
    broken = _mutate(BASE, stage, change)
    assert any(fault in found for found in problems(broken)), problems(broken)
    with pytest.raises(LayoutError, match="unsafe interleaved schedule"):
        verify(broken)


def test_megatrons_two_stage_interleaving_needs_matching_ends():
    """With two stages a forward and a backward message cross; sent together, order must agree."""
    schedule = add_comm(build("interleaved", 2, 2, 4))
    sends = [a for a in schedule.stages[0] if a.kind is Kind.SEND_F]
    swapped = _mutate(schedule, 0, lambda s: _swap(s, sends[2], sends[4]))
    assert any("channel 0->1 (F)" in found for found in problems(swapped))


@given(legal_shapes(), st.data())
def test_taking_any_action_away_is_noticed(shape, data):
    schedule = add_comm(build(*shape))
    stage = data.draw(st.integers(0, schedule.pp - 1))
    needed = [a for a in schedule.stages[stage] if schedule.chunks > 1 or a.kind in COMPUTE]
    victim = data.draw(st.sampled_from(needed))
    assert problems(_mutate(schedule, stage, lambda s: s.remove(victim)))


@given(legal_shapes(), st.data())
def test_a_deadlock_by_reordering_is_noticed(shape, data):
    """Any order of a stage either passes the simulator or is refused: verify never lies."""
    schedule = build(*shape)
    stage = data.draw(st.integers(0, schedule.pp - 1))
    order = data.draw(st.permutations(schedule.stages[stage]))
    shuffled = _mutate(schedule, stage, lambda s: s.__setitem__(slice(None), order))
    found = problems(shuffled)
    place = {action: i for i, action in enumerate(order)}
    for action in order:
        if (
            action.kind is Kind.BACKWARD
            and place[Action(Kind.FORWARD, *action[1:])] > place[action]
        ):
            assert found


def _without(*texts):
    return _mutate(build("1f1b", 1, 1, 6), 0, lambda s: [s.remove(_a(text)) for text in texts])


def test_the_refusal_names_three_faults_and_counts_the_rest():
    with pytest.raises(LayoutError) as three:
        verify(_without("0F0", "0F2", "0B1"))
    assert three.value.what == (
        "unsafe 1f1b schedule: 0B1 is missing; 0F0 is missing; 0F2 is missing"
    )
    with pytest.raises(LayoutError) as five:
        verify(_without("0F0", "0F2", "0F3", "0B1", "0B4"))
    assert five.value.what == (
        "unsafe 1f1b schedule: 0B1 is missing; 0B4 is missing; 0F0 is missing and 2 more"
    )


@pytest.mark.parametrize(
    ("m", "sent", "received"),
    [(6, "1:1 1:0 1:2 1:3 1:4 1:5", "1:0 1:1 1:2 1:3 1:4 1:5"),
     (7, "1:1 1:0 1:2 1:3 1:4 1:5 ...", "1:0 1:1 1:2 1:3 1:4 1:5 ...")],
)  # fmt: skip
def test_a_channels_orders_are_shown_up_to_six_messages(m, sent, received):
    schedule = add_comm(build("gpipe", 2, 1, m))
    swapped = _mutate(schedule, 0, lambda s: _swap(s, _a("0SEND_F0"), _a("0SEND_F1")))
    line = f"channel 0->1 (F): sent in order {sent}, received in order {received}"
    assert line in problems(swapped)


def test_peak_activations_may_come_after_some_were_freed():
    order = [_a(text) for text in ("0F0", "0B0", "0F1", "0F2", "0B1", "0B2")]
    assert peak_activations(build("gpipe", 1, 1, 3).with_stages([order]), 0) == 2


@pytest.mark.parametrize(
    ("kind", "early", "late"),
    [("1f1b", "1RECV_F2", "1F2"), ("1f1b", "1F2", "1SEND_F2"), ("1f1b", "1UNSHARD", "1F0"),
     ("1f1b", "1F2", "1B2"), ("1f1b", "1RECV_B2", "1B2"), ("1f1b", "1B2", "1SEND_B2"),
     ("1f1b", "1B3", "1REDUCE_GRAD"), ("zero-bubble", "1F2", "1I2"),
     ("zero-bubble", "1RECV_B2", "1I2"), ("zero-bubble", "1I2", "1SEND_B2"),
     ("zero-bubble", "1I2", "1W2"), ("zero-bubble", "1W3", "1REDUCE_GRAD")],
)  # fmt: skip
def test_every_rule_of_order_is_told_by_itself(kind, early, late):
    schedule = add_comm(build(kind, 3, 1, 4), dp=True)
    swapped = _mutate(schedule, 1, lambda s: _swap(s, _a(early), _a(late)))
    assert f"stage 1: {late} comes before {early}" in problems(swapped)


def test_messages_that_nobody_sends_or_receives_are_channels_with_one_end():
    schedule = add_comm(build("gpipe", 2, 1, 2))
    silent = _mutate(schedule, 0, lambda s: [s.remove(_a(t)) for t in ("0SEND_F0", "0SEND_F1")])
    assert "channel 0->1 (F): sent in order , received in order 1:0 1:1" in problems(silent)
    deaf = _mutate(schedule, 1, lambda s: [s.remove(_a(t)) for t in ("1RECV_F0", "1RECV_F1")])
    assert "channel 0->1 (F): sent in order 1:0 1:1, received in order " in problems(deaf)


@pytest.mark.parametrize(
    ("action", "line"),
    [("1SEND_F0", "channel 1->-1 (F): sent in order 2:0, received in order "),
     ("0SEND_B0", "channel 0->-1 (B): sent in order -1:0, received in order "),
     ("0RECV_F0", "channel -1->0 (F): sent in order , received in order 0:0"),
     ("1RECV_B0", "channel -1->1 (B): sent in order , received in order 1:0")],
)  # fmt: skip
def test_messages_over_the_ends_of_the_model_have_no_other_end(action, line):
    stage = _a(action).chunk
    schedule = add_comm(build("gpipe", 2, 1, 2))
    assert line in problems(_mutate(schedule, stage, lambda s: s.append(_a(action))))
