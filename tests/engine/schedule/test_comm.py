import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.action import COMPUTE, PER_CHUNK, RECVS, SENDS, Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm, source, target
from engine.schedule.verify import problems
from tests.engine.schedule.shapes import legal_shapes


@given(legal_shapes(), st.booleans(), st.booleans(), st.booleans())
def test_communication_leaves_the_compute_order_alone(shape, overlap_pp, overlap_dp, dp):
    plain = build(*shape)
    program = add_comm(plain, overlap_pp=overlap_pp, overlap_dp=overlap_dp, dp=dp)
    for stage in range(plain.pp):
        assert program.compute_order(stage) == plain.stages[stage]


@given(legal_shapes())
def test_every_boundary_has_one_message_each_way(shape):
    schedule = add_comm(build(*shape))
    actions = [a for stage in schedule.stages for a in stage]
    homes = [schedule.stage_of(chunk) for chunk in range(schedule.chunks)]
    remote = sum(here != there for here, there in itertools.pairwise(homes))
    for kinds in (SENDS, RECVS):
        assert sum(a.kind in kinds for a in actions) == 2 * remote * schedule.microbatches
    assert sum(a.kind in PER_CHUNK for a in actions) == 2 * schedule.chunks


def test_one_replica_gathers_nothing():
    program = add_comm(build("1f1b", 2, 1, 2), dp=False)
    assert not any(a.kind in PER_CHUNK for stage in program.stages for a in stage)


def test_without_overlap_all_stands_next_to_its_use():
    program = add_comm(build("1f1b", 2, 1, 2), overlap_pp=False, overlap_dp=False)
    assert [str(a) for a in program.stages[0]] == [
        "0UNSHARD", "0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1",
        "0REDUCE_GRAD",
    ]  # fmt: skip


def test_with_overlap_receives_and_gathers_stand_one_compute_ahead():
    program = add_comm(build("interleaved", 2, 2, 2))
    actions = [str(a) for a in program.stages[0]]
    assert actions.index("2UNSHARD") < actions.index("0F0")
    compute = [a for a in program.stages[0] if a.kind in COMPUTE]
    for action in program.stages[0]:
        if action.kind in RECVS:
            use = Kind.FORWARD if action.kind is Kind.RECV_F else Kind.BACKWARD
            position = compute.index(Action(use, action.chunk, action.microbatch))
            ahead = program.stages[0].index(compute[position - 1])
            assert program.stages[0].index(action) < ahead


@pytest.mark.slow
@given(legal_shapes(), st.integers(1, 8))
def test_receives_posted_earlier_stay_in_order_and_safe(shape, ahead):
    program = add_comm(build(*shape), ahead=ahead)
    assert problems(program) == []
    for stage in program.stages:
        compute = [a for a in stage if a.kind in COMPUTE]
        for place, action in enumerate(stage):
            if action.kind in RECVS:
                uses = (Kind.FORWARD,) if action.kind is Kind.RECV_F else (
                    Kind.BACKWARD, Kind.BACKWARD_INPUT
                )  # fmt: skip
                later = [a for a in stage[place:] if a.kind in COMPUTE]
                use = next(a for a in later if a.kind in uses and a[1:] == action[1:])
                assert later.index(use) == min(ahead, compute.index(use))


def test_neighbours():
    schedule = build("interleaved", 2, 2, 2)
    assert source(schedule, Action(Kind.FORWARD, 0, 0)) is None
    assert source(schedule, Action(Kind.FORWARD, 2, 0)) == 1
    assert target(schedule, Action(Kind.FORWARD, 3, 0)) is None
    assert target(schedule, Action(Kind.BACKWARD, 2, 0)) == 1
    assert source(schedule, Action(Kind.UNSHARD, 2)) is None
    alone = build("interleaved", 1, 2, 2)
    assert (
        target(alone, Action(Kind.FORWARD, 0, 0)) is None
    )  # the next chunk lives on the same stage
