"""Faults as text: every kind parses back to itself, nonsense is refused with the list of kinds."""

from typing import get_args

import pytest

from engine.errors import RecipeError
from engine.train.drill import ABOUT, Fault, Kind, parse_fault, parse_faults


def kinds(union) -> set[str]:
    found = set()
    for part in get_args(union):
        found |= kinds(part) if get_args(part) else {part}
    return found


def test_every_kind_is_explained():
    assert kinds(Kind) == set(ABOUT)


@pytest.mark.parametrize("kind", ABOUT)
def test_a_fault_parses_back_to_itself(kind):
    fault = Fault(kind=kind, step=9, after=0.25, times=2)
    assert parse_fault(fault.text()) == fault


def test_parts_have_defaults():
    assert parse_fault("redis-kill@step=5") == Fault(kind="redis-kill", step=5)
    assert parse_fault("crash:rank=3@step=20") == Fault(kind="crash", rank=3, step=20)
    assert parse_fault("slow:rank=1,share=0.25") == Fault(kind="slow", rank=1, share=0.25)


@pytest.mark.parametrize(
    "text", ["", "crush:rank=3", "crash:rank=-1", "crash:rank=x", "crash:speed=1", "slow:share=1"]
)
def test_nonsense_is_refused_with_the_kinds(text):
    with pytest.raises(RecipeError) as caught:
        parse_fault(text)
    assert "node-kill" in caught.value.remedy


def test_too_many_at_once_are_refused():
    with pytest.raises(RecipeError, match="17 drills"):
        parse_faults(["crash"] * 17)
