"""Each event belongs to exactly one part of the step, and every part has a label."""

import pytest

from engine.diagnose.parts import COMPUTE, DIRECT, LABELS, OWN, PARTS, part_of
from engine.events.schema import NAMES


def test_every_part_is_listed_once_and_has_a_label():
    assert len(set(PARTS)) == len(PARTS)
    assert set(LABELS) == set(PARTS)
    assert set(DIRECT.values()) <= set(PARTS)
    assert set(COMPUTE) < set(OWN) < set(PARTS)
    assert not [part for part in OWN if part.startswith("wait")]


def test_every_name_of_the_table_is_an_event_of_the_schema():
    assert set(DIRECT) <= set(NAMES)


@pytest.mark.parametrize(
    ("on", "part"),
    [("pp_f", "wait_pp"), ("pp_b", "wait_pp"), ("dp_reduce", "wait_dp"), ("dp_gather", "wait_dp"),
     ("tp", "wait_tp"), ("snapshot", "wait_other"), ("", "wait_other"), (None, "wait_other"),
     (7, "wait_other")],
)  # fmt: skip
def test_a_wait_goes_by_what_it_waits_on(on, part):
    assert part_of("wait", {"on": on}) == part


@pytest.mark.parametrize(
    ("name", "part"),
    [("forward", "forward"), ("backward_input", "backward"), ("backward_weight", "backward"),
     ("tp_comm", "wait_tp"), ("unshard", "wait_dp"), ("recv_b", "wait_pp"), ("gc", "gc"),
     ("step", "other"), ("never heard of", "other")],
)  # fmt: skip
def test_any_other_span_goes_by_its_name(name, part):
    assert part_of(name, {"on": "pp_f"}) == part


def test_a_wait_that_names_nothing_is_another_wait():
    assert part_of("wait", {}) == "wait_other"
