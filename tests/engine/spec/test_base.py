import msgspec
import pytest

from engine.spec.base import Count, NonNegative, Noun, Positive, Ratio, Size


class Thing(Noun, frozen=True, kw_only=True):
    count: Count = 1
    size: Size = 0
    ratio: Ratio = 0.5
    positive: Positive = 1.0
    least: NonNegative = 0.0


def test_a_noun_is_frozen_compared_by_value_and_hashable():
    thing = Thing(count=2)
    with pytest.raises(AttributeError):
        thing.count = 3
    assert {thing: 1}[Thing(count=2)] == 1


def test_a_noun_refuses_unknown_keys_and_positions():
    with pytest.raises(TypeError):
        Thing(2)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"cuont": 2}, Thing)


@pytest.mark.parametrize(
    "wrong",
    [{"count": 0}, {"size": -1}, {"ratio": 1.1}, {"ratio": -0.1}, {"positive": 0.0},
     {"least": -1e-9}, {"count": "1"}, {"count": True}],
)  # fmt: skip
def test_the_constrained_types_hold(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Thing)
