"""Faults as text: every kind parses back to itself, nonsense is refused with the list of kinds."""

from typing import get_args

import pytest

from engine.errors import RecipeError
from engine.train.drill import ABOUT, Fault, Kind, check_faults, parse_fault, parse_faults
from tests.engine.train.single import recipe


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill@step=-2", "step = -2 is not a whole number from 0"),
        ("kill:rank=x", "rank = x is not a whole number from 0"),
        ("kill:after=inf", "after = inf is not a number of seconds from 0"),
        ("kill:times=0", "times = 0 is not a whole number from 1"),
        ("slow:share=1", "share = 1 is not a number between 0 and 1"),
        ("kill:speed=1", "`speed` is no part of a fault"),
        ("clock:rank=1", "clock hits a node, so rank = 1 means nothing"),
        ("kill:node=1", "kill hits a rank, so node = 1 means nothing"),
    ],
)
def test_a_wrong_part_is_named_in_words(text, said):
    with pytest.raises(RecipeError) as caught:
        parse_fault(text)
    assert caught.value.what.startswith(f"--drill {text}: {said}")
    assert "$." not in caught.value.what


@pytest.mark.parametrize(
    ("text", "sections", "said"),
    [
        ("kill:rank=99@step=1", {}, "there is no rank 99; the layout makes number 0 only"),
        ("nan:rank=1@step=1", {}, "there is no rank 1"),
        ("clock:node=5@step=1", {}, "there is no node 5; job.nodes = 1 makes number 0 only"),
        ("node-kill:node=3@step=1", {"job": {"nodes": 3}}, "job.nodes = 3 makes 0 to 2"),
        ("kill@step=7", {}, "step 7 does not come; the run ends at train.steps = 6"),
        ("redis-kill@step=1", {}, "the run starts no Redis of its own"),
        ("flip@step=1", {}, "replicas are not compared (job.sdc_every = 0)"),
        ("torn-checkpoint@step=1", {"checkpoint": {"path": "s3://b/ckpt"}}, "is a URL"),
    ],
)
def test_a_fault_that_can_never_come_is_refused_with_what_there_is(text, sections, said):
    with pytest.raises(RecipeError) as caught:
        check_faults([parse_fault(text)], recipe(**sections))
    assert caught.value.what.startswith(f"--drill {parse_fault(text).text()}: ")
    assert said in caught.value.what


def test_faults_that_can_come_pass():
    texts = ["kill", "clock:node=2@step=6", "redis-kill@step=1", "torn-checkpoint@step=3"]
    one = recipe(job={"nodes": 3}, train={"store": "redis"}, checkpoint={"path": "file:///x"})
    check_faults(parse_faults(texts), one)


def test_too_many_at_once_are_refused():
    with pytest.raises(RecipeError, match="17 drills"):
        parse_faults(["crash"] * 17)
