"""What is done about a fault: each rule of the policy, and that it never goes on for ever."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.job.incident import Incident
from engine.job.policy import WINDOW_S, Fleet, decide
from engine.spec.job import JobSpec

NODES = ("a", "b", "c", "d")
JOB = JobSpec(restarts=10, repeats=3)


def incident(kind: str = "crash", *, node: str = "", step: int = 7, **more) -> Incident:
    fields = {"what": f"{kind} on {node}", "signature": f"{kind} {node}", "confidence": 0.9}
    fields["nodes"] = (node,) if node else ()
    return Incident(kind=kind, step=step, **(fields | more))


def fleet(*, lost=(), unfit=None, spares=(), can_start=0) -> Fleet:
    return Fleet(NODES, frozenset(lost), unfit or {}, tuple(spares), can_start)


def test_a_first_crash_restarts_where_it_was():
    made = decide(incident(node="b"), (), fleet(spares=("s",)), JOB)
    assert (made.kind, made.evict, made.take) == ("restart", (), ())


def test_a_node_on_which_ranks_die_twice_leaves_if_something_replaces_it():
    once = incident(node="b", step=3, time_s=100.0)
    now = incident(node="b", step=7, time_s=200.0)
    made = decide(now, (once,), fleet(spares=("s",)), JOB)
    assert (made.kind, made.evict, made.take) == ("restart", ("b",), ("s",))
    assert decide(now, (once,), fleet(), JOB).evict == ()
    late = msgspec.structs.replace(now, time_s=100.0 + WINDOW_S + 1)
    assert decide(late, (once,), fleet(spares=("s",)), JOB).evict == ()
    other = incident(node="c", step=7, time_s=200.0)
    assert decide(other, (once,), fleet(spares=("s",)), JOB).evict == ()


def test_a_node_that_the_verdict_of_a_hang_names_surely_leaves_for_a_spare():
    assert decide(incident("hang", node="c"), (), fleet(spares=("s",)), JOB).evict == ("c",)
    assert decide(incident("hang", node="c"), (), fleet(), JOB).evict == ()
    unsure = incident("hang", node="c", confidence=0.5)
    assert decide(unsure, (), fleet(spares=("s",)), JOB).evict == ()


def test_what_is_lost_or_unfit_leaves_and_spares_come_in_order():
    made = decide(incident("node", node="a"), (), fleet(lost="a", unfit={"c": "gpu.ecc"},
                                                       spares=("s", "t", "u")), JOB)  # fmt: skip
    assert (made.evict, made.take) == (("a", "c"), ("s", "t"))
    assert "a is lost" in made.why
    assert "gpu.ecc" in made.why


@pytest.mark.parametrize("choice", ["shrink", "wait", "stop"])
def test_without_a_spare_the_recipe_chooses(choice):
    job = JobSpec(without_spare=choice)
    assert decide(incident("node", node="a"), (), fleet(lost="a"), job).kind == choice
    assert decide(incident("node", node="a"), (), fleet(lost="a", can_start=1), job).kind == (
        "restart"
    )


@pytest.mark.parametrize("kind", ["bug", "numbers", "spike"])
def test_a_fault_of_program_or_data_evicts_nobody(kind):
    history = (incident(kind, node="b", step=3), incident(kind, node="b", step=5))
    made = decide(incident(kind, node="b"), history, fleet(spares=("s",)), JOB)
    assert (made.kind, made.evict) == ("restart", ())


def test_a_wrong_input_or_an_exception_before_the_first_step_ends_the_run():
    assert decide(incident("input"), (), fleet(), JOB).kind == "stop"
    assert decide(incident("bug", step=-1), (), fleet(), JOB).kind == "stop"
    assert decide(incident("bug", step=0), (), fleet(), JOB).kind == "restart"


def test_bad_numbers_are_tried_again_then_left_out_unless_they_shall_stop():
    once = incident("numbers", step=9)
    first = decide(once, (), fleet(), JOB)
    assert (first.kind, first.skip_step) == ("restart", -1)
    again = decide(once, (once,), fleet(), JOB)
    assert (again.kind, again.skip_step) == ("restart", 9)
    assert decide(once, (), fleet(), JobSpec(bad_numbers="stop")).kind == "stop"


def test_bad_numbers_at_every_step_end_the_run_instead_of_leaving_all_out():
    twice = tuple(incident("numbers", step=step) for step in (7, 7, 8, 8))
    end = decide(incident("numbers", step=9), twice, fleet(), JOB)
    assert (end.kind, "3 steps in a row" in end.why) == ("stop", True)
    assert decide(incident("numbers", step=11), twice, fleet(), JOB).kind == "restart"
    assert decide(incident("crash", step=9), twice, fleet(), JOB).kind == "restart"


def test_a_fault_that_comes_again_with_nobody_named_is_bisected_once_then_ends_the_run():
    same = incident()
    assert decide(same, (same,), fleet(), JOB).kind == "restart"
    assert decide(same, (same, same), fleet(), JOB).kind == "bisect"
    assert decide(same, (same, same), fleet(), JOB, bisected=True).kind == "restart"
    end = decide(same, (same, same, same), fleet(), JOB)
    assert (end.kind, "4 times at step 7" in end.why) == ("stop", True)


def test_progress_forgives_repetition():
    history = tuple(incident(step=step) for step in (1, 2, 3, 4, 5))
    assert decide(incident(step=6), history, fleet(), JOB).kind == "restart"


def test_a_node_that_computed_wrong_numbers_leaves_if_something_replaces_it():
    seen = incident("corruption", node="c")
    made = decide(seen, (), fleet(spares=("s",)), JOB)
    assert (made.kind, made.evict, made.take) == ("restart", ("c",), ("s",))
    assert decide(seen, (), fleet(), JOB).evict == ()


def test_of_two_nodes_that_differ_one_leaves_and_then_the_one_that_differed_before():
    def two(*nodes: str, **more) -> Incident:
        return incident("corruption", nodes=nodes, confidence=0.4, **more)

    first = decide(two("b", "d"), (), fleet(spares=("s", "t")), JOB)
    assert (first.evict, first.take) == (("b",), ("s",))
    replaced = Fleet(("a", "s", "c", "d"), frozenset(), {}, ("t",))
    assert decide(two("s", "d", step=9), (two("b", "d"),), replaced, JOB).evict == ("d",)
    known = fleet(spares=("s",), unfit={"d": "host.gemm: a matrix product is wrong"})
    assert decide(two("b", "d"), (), known, JOB).evict == ("d",), "its check says who it is"
    assert decide(two("b", "d"), (), fleet(), JOB).evict == ()


KINDS = st.sampled_from(["crash", "bug", "hang", "node", "numbers", "start", "slow", "corruption"])


@given(st.lists(st.tuples(KINDS, st.sampled_from(NODES), st.integers(0, 3)), max_size=40))
def test_no_sequence_of_faults_is_answered_for_ever_and_nobody_is_taken_who_is_not_there(faults):
    history: list[Incident] = []
    for number, (kind, node, step) in enumerate(faults):
        now = incident(kind, node=node, step=step, time_s=float(number))
        lost = (node,) if kind == "node" else ()
        made = decide(now, history, fleet(lost=lost, spares=("s",)), JOB)
        assert set(made.evict) <= set(NODES)
        assert set(made.take) <= {"s"}
        assert len(made.take) <= len(made.evict)
        if made.kind == "stop":
            return
        history.append(now)
        assert len(history) <= JOB.restarts
