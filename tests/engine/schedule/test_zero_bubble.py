from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.action import COMPUTE, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.simulate import simulate
from engine.schedule.verify import peak_activations, verify
from engine.spec.shape import legal
from tests.engine.schedule.torch_order import executed

SHAPES = [
    (kind, pp, vpp, m)
    for kind, vpps in (("zero-bubble", (1, 2, 3)), ("zb-v", (2,)))
    for pp in (1, 2, 3, 4, 6)
    for vpp in vpps
    for m in (2, 4, 6, 8, 12, 16)
    if legal(kind, pp, vpp, m) is None
]


@pytest.mark.parametrize("kind", ["zero-bubble", "zb-v"])
def test_the_order_is_the_one_that_torch_executes(kind):
    compared = 0
    for _, pp, vpp, m in [s for s in SHAPES if s[0] == kind]:
        try:
            torchs = executed(kind, pp, vpp, m)
        except ValueError:  # a shape that torch refuses
            continue
        ours = build(kind, pp, vpp, m)
        for stage in range(pp):
            assert list(ours.stages[stage]) == torchs[stage], (pp, vpp, m, stage)
        compared += 1
    assert compared >= 10


def _bubble(kind: str, pp: int, vpp: int, m: int) -> Fraction:
    """Idle over busy time when forward and both halves of the backward take one unit each."""
    run = simulate(build(kind, pp, vpp, m), lambda action: 1.0)
    return Fraction(run.makespan_s) / (3 * vpp * m) - 1


@given(st.integers(2, 6), st.integers(2, 5))
def test_a_v_waits_only_at_the_start(pp, rounds):
    m = 2 * pp * rounds
    assert _bubble("zb-v", pp, 2, m) == Fraction(pp - 1, 6 * m)


@given(st.integers(2, 6), st.integers(1, 4))
def test_zero_bubble_waits_less_than_1f1b(pp, rounds):
    m = pp * rounds
    assert _bubble("zero-bubble", pp, 1, m) < Fraction(pp - 1, m)


@given(st.integers(1, 6), st.integers(1, 4))
def test_it_holds_no_more_than_1f1b_while_inputs_are_due(pp, rounds):
    m = pp * rounds
    schedule = build("zero-bubble", pp, 1, m)
    for stage, actions in enumerate(schedule.stages):
        held = peak = 0
        for action in actions:
            held += {Kind.FORWARD: 1, Kind.BACKWARD_INPUT: -1}.get(action.kind, 0)
            peak = max(peak, held)
        assert peak <= min(m, pp - stage)
        assert peak_activations(schedule, stage) >= peak


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_safe_with_communication(shape):
    plain = build(*shape)
    program = verify(add_comm(plain))
    for stage in range(plain.pp):
        assert [a for a in program.stages[stage] if a.kind in COMPUTE] == list(plain.stages[stage])
