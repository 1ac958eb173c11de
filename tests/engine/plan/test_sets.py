"""`--set` of a plan: which keys, which values, and the space that is left."""

import pytest

from engine.errors import RecipeError
from engine.plan.search import Space
from engine.plan.sets import held, parse_sets
from tests.engine.plan.case import job


def test_a_comma_separates_alternatives_and_the_rest_stays_free():
    sets = parse_sets(["layout.tp=2,4", "layout.zero=0,3", "schedule.kind=gpipe", "model.seq=64"])
    space = held(Space(), sets, job("13b"))
    assert (space.tp, space.zero, space.schedule, space.pp) == ((2, 4), (0, 3), ("gpipe",), ())


@pytest.mark.parametrize(
    "item",
    ["layout.zero=4", "layout.zero=-1", "layout.tp=0", "layout.tp=99999999",
     "layout.sequence_parallel=yes", "schedule.kind=1f1b"],
)  # fmt: skip
def test_a_value_that_the_key_does_not_have_is_refused(item):
    with pytest.raises(RecipeError, match="not a value of that key"):
        held(Space(), parse_sets([item]), job("13b"))


@pytest.mark.parametrize("item", ["train.steps=4", "layout.tp", "layout.tp="])
def test_a_key_that_a_plan_does_not_hold_is_refused(item):
    with pytest.raises(RecipeError, match="not one of the keys"):
        parse_sets([item])
