import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.action import COMPUTE, PER_CHUNK, RECVS, SENDS, Action, Kind

ACTIONS = st.builds(
    lambda kind, chunk, m: Action(kind, chunk, None if kind in PER_CHUNK else m),
    st.sampled_from(Kind), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1),
)  # fmt: skip


@given(ACTIONS)
def test_text_and_action_are_inverse(action):
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [("5F2", Action(Kind.FORWARD, 5, 2)), ("0UNSHARD", Action(Kind.UNSHARD, 0)),
     ("12SEND_F3", Action(Kind.SEND_F, 12, 3)), ("1REDUCE_GRAD", Action(Kind.REDUCE_GRAD, 1))],
)  # fmt: skip
def test_the_text_is_that_of_torch(text, action):
    assert Action.parse(text) == action
    assert str(action) == text


@pytest.mark.parametrize(
    "text", ["", "F2", "5F", "5X2", "5UNSHARD3", "-1F2", "5F2 ", "5f2", "5F" + "1" * 10, "٣F2"]
)
def test_what_is_no_action(text):
    with pytest.raises(ValueError, match="not an action"):
        Action.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("5F", "FORWARD needs a micro-batch number"), ("5UNSHARD3", "UNSHARD takes no micro-batch "
      "number"), ("F2", "expected e.g. 5F2 or 0UNSHARD")],
)  # fmt: skip
def test_what_is_no_action_is_told_why(text, why):
    with pytest.raises(ValueError, match="not an action") as error:
        Action.parse(text)
    assert str(error.value) == f"not an action: {text!r} ({why})"


def test_kinds_fall_into_four_classes():
    classes = [COMPUTE, SENDS, RECVS, PER_CHUNK]
    assert frozenset().union(*classes) == set(Kind)
    assert sum(len(c) for c in classes) == len(Kind)
