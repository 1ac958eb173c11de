"""The tables: no state without an exit, an end always within reach, nothing leaves the tables."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RunFailed
from engine.job.state import FINAL, JOB, NODE, NODE_FINAL, next_job, next_node

EVENTS = sorted({event for row in JOB.values() for event in row})
NODE_EVENTS = sorted({event for row in NODE.values() for event in row})


def reachable(table, start) -> set[str]:
    seen, queue = {start}, deque([start])
    while queue:
        for there in table[queue.popleft()].values():
            if there not in seen:
                seen.add(there)
                queue.append(there)
    return seen


@pytest.mark.parametrize(("table", "final"), [(JOB, FINAL), (NODE, NODE_FINAL)])
def test_every_state_but_the_last_has_an_exit_and_an_end_within_reach(table, final):
    for state, row in table.items():
        assert set(row.values()) <= set(table)
        if state in final:
            assert not row, f"{state} is an end"
        else:
            assert set(row.values()) - {state}, f"nothing leads out of {state}"
            assert reachable(table, state) & set(final), f"no end is within reach of {state}"


def test_every_state_comes_about():
    assert reachable(JOB, "starting") == set(JOB)
    assert reachable(NODE, "joining") == set(NODE)


@pytest.mark.parametrize("state", sorted(set(JOB) - FINAL))
def test_a_person_can_stop_a_job_and_a_driver_give_it_up_in_every_state(state):
    assert next_job(next_job(state, "stop"), "ended") == "interrupted"
    assert next_job(state, "gave_up") == "failed"


def test_a_recovery_goes_through_evidence_check_and_replacement():
    state = "running"
    path = []
    for event in ("trouble", "trouble", "collected", "checked", "replaced", "stepped"):
        state = next_job(state, event)
        path.append(state)
    assert path == ["suspect", "collecting", "checking", "replacing", "starting", "running"]


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_whatever_happens_a_job_stays_in_the_table_and_an_end_is_an_end(events):
    state = "starting"
    for event in events:
        if event in JOB[state]:
            state = next_job(state, event)
            assert state in JOB
        else:
            with pytest.raises(RunFailed, match=state):
                next_job(state, event)
        if state in FINAL:
            assert not JOB[state]


@given(st.lists(st.sampled_from(NODE_EVENTS), max_size=60))
def test_an_evicted_node_never_carries_ranks_again(events):
    state, out = "joining", False
    for event in events:
        state = next_node(state, event)
        out = out or (event == "evict" and state == "evicted")
        if out:
            assert state in ("evicted", "left")
