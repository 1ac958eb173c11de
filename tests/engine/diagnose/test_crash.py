"""A mismatch that one rank reports concerns the rank it met in that collective."""

import pytest

from engine.diagnose.crash import crash_findings
from engine.diagnose.finding import Finding
from engine.diagnose.logs.triage import Triage
from engine.diagnose.readers.beats import Beat
from engine.diagnose.readers.job import NOTHING, Job

JOB = Job("j", 8, (("tp", 2), ("dp", 2), ("pp", 2)), {})


def ranks(phases, *, category="desync", said=(5,), job=JOB):
    finding = Finding(kind="crash", category=category, what="x", ranks=said)
    beats = {r: Beat(r, 1.0, 1.0, 6, phase, 0, "") for r, phase in phases.items()}
    (found,) = crash_findings(Triage((finding,), (), frozenset(), 8), job, beats)
    assert found.what == "x"
    return found.ranks


def test_the_partner_is_who_stands_in_the_same_groups_collective():
    assert ranks({4: "tp_all_reduce", 7: "dp_all_reduce", 6: "forward"}) == (4, 5)
    assert ranks({4: "forward", 7: "dp_all_gather"}) == (5, 7)


def test_tensor_groups_are_asked_before_data_groups():
    assert ranks({4: "TP_reduce", 7: "dp_reduce"}) == (4, 5)


@pytest.mark.parametrize("phase", ["tp_forward", "optimizer", "dp_reduce", ""])
def test_a_neighbour_that_does_something_else_is_no_partner(phase):
    assert ranks({4: phase}) == (5,)


def test_no_partner_where_there_is_nothing_to_go_by():
    assert ranks({}) == (5,)
    assert ranks({4: "tp_reduce"}, said=(2, 5)) == (2, 5)
    assert ranks({4: "tp_reduce"}, said=()) == ()
    assert ranks({4: "tp_reduce"}, job=NOTHING) == (5,)


def test_other_causes_are_left_as_they_are():
    assert ranks({4: "tp_reduce"}, category="cuda_oom") == (5,)
