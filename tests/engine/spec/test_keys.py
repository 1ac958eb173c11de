import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.keys import Keys, closest, divisors, problem
from engine.spec.presets import model_preset
from engine.spec.recipe import BatchSpec, Recipe

RECIPE = Recipe(name="x", model=model_preset("tiny"), batch=BatchSpec(global_batch=4))


def test_keys_are_shown_as_written_and_defaults_marked():
    keys = Keys(RECIPE, frozenset({"model.layers"}))
    assert keys.show("model.layers") == "model.layers = 4"
    assert keys.show("schedule.kind") == 'schedule.kind = "auto" (default)'
    assert keys.number("layout.tp") == 1
    with pytest.raises(AssertionError, match="not a whole number"):
        keys.number("optimizer.lr")


def test_without_a_list_all_keys_count_as_given():
    assert Keys(RECIPE, None).given("layout.tp")


def test_divisors_around_a_value():
    assert divisors(128, near=6) == "2 or 4 or 8 or 16"
    assert divisors(7, near=3) == "1 or 7"


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_closest_divides_and_nothing_between_does(number, near):
    found = closest(number, near)
    assert number % found == 0
    assert found <= near
    assert all(number % d for d in range(found + 1, min(near, number) + 1))


def test_the_first_key_leads():
    assert problem("a", "b", what="w", remedy="r").keys == ("a", "b")
