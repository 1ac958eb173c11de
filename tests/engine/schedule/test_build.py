import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import LayoutError
from engine.schedule.action import Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.simulate import simulate
from engine.schedule.verify import peak_activations
from engine.spec.shape import legal
from tests.engine.schedule.torch_order import executed

SHAPES = [
    (kind, pp, vpp, m)
    for kind, vpps in (("gpipe", (1,)), ("1f1b", (1,)), ("interleaved", (1, 2, 3, 6)))
    for pp in (1, 2, 3, 4, 8)
    for vpp in vpps
    for m in (1, 2, 3, 4, 6, 8, 10, 16, 32)
    if legal(kind, pp, vpp, m) is None
]


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_the_order_is_the_one_that_torch_executes(kind):
    compared = 0
    for _, pp, vpp, m in [s for s in SHAPES if s[0] == kind]:
        if kind == "1f1b" and m < pp:
            continue  # torch refuses it
        ours = build(kind, pp, vpp, m)
        torchs = executed(kind, pp, vpp, m)
        for stage in range(pp):
            assert list(ours.stages[stage]) == torchs[stage], (pp, vpp, m, stage)
        compared += 1
    assert compared >= 20


@pytest.mark.slow
def test_the_papers_shapes_are_torchs_too():
    for pp, vpp, m in ((8, 6, 32), (35, 3, 280)):
        assert [list(s) for s in build("auto", pp, vpp, m).stages] == executed(
            "interleaved", pp, vpp, m
        )


def test_1f1b_with_fewer_microbatches_than_stages_drains():
    stages = build("1f1b", 4, 1, 2).stages
    assert [str(a) for a in stages[0]] == ["0F0", "0F1", "0B0", "0B1"]
    assert [str(a) for a in stages[3]] == ["3F0", "3B0", "3F1", "3B1"]


@given(st.sampled_from(SHAPES))
def test_every_chunk_runs_every_microbatch_once_each_way(shape):
    kind, pp, vpp, m = shape
    schedule = build(kind, pp, vpp, m)
    for stage in range(pp):
        for want in (Kind.FORWARD, Kind.BACKWARD):
            done = [(a.chunk, a.microbatch) for a in schedule.stages[stage] if a.kind is want]
            assert sorted(done) == [(c, i) for c in schedule.chunks_of(stage) for i in range(m)]


def test_an_illegal_shape_names_itself():
    with pytest.raises(LayoutError, match=r"pp=4, vpp=2, micro-batches=9") as caught:
        build("auto", 4, 2, 9)
    assert "multiple of layout.pp" in caught.value.remedy


def test_warm_up_of_1f1b_is_the_distance_to_the_end():
    for stage, actions in enumerate(build("1f1b", 5, 1, 9).stages):
        first_backward = next(i for i, a in enumerate(actions) if a.kind is Kind.BACKWARD)
        assert first_backward == 5 - stage


def test_a_wider_group_takes_more_micro_batches_through_a_chunk_before_the_next():
    first = [str(a) for a in build("interleaved", 2, 2, 4, 4).stages[0]]
    assert first[:8] == ["0F0", "0F1", "0F2", "0F3", "2F0", "2F1", "2F2", "2B0"]
    whole = build("interleaved", 2, 3, 6, 2)
    assert whole == build("interleaved", 2, 3, 6)


def test_running_ahead_hides_messages_that_1f1b_waits_for():
    """Messages of 3/4 of a forward each way, on links of their own: 1F1B waits for each."""

    def step_s(run_ahead: int, kind: str = "1f1b") -> float:
        program = add_comm(build(kind, 2, 1, 16, 0, run_ahead), dp=False, ahead=4)
        seconds = {Kind.FORWARD: 4.0, Kind.BACKWARD: 8.0, Kind.BACKWARD_INPUT: 4.0,
                   Kind.BACKWARD_WEIGHT: 4.0, Kind.SEND_F: 3.0, Kind.SEND_B: 3.0}  # fmt: skip
        return simulate(program, lambda action: seconds[action.kind]).makespan_s

    work, bubble, message = 16 * 12.0, 12.0, 3.0
    assert step_s(1) == work + bubble + 16 * message
    assert step_s(2) == work + bubble + 2 * message  # only on the way in and out
    assert step_s(2, "zero-bubble") < step_s(2)


def test_running_ahead_costs_the_activations_it_says():
    plain, eager = build("1f1b", 4, 1, 16), build("1f1b", 4, 1, 16, 0, 2)
    assert [peak_activations(plain, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [peak_activations(eager, stage) for stage in range(4)] == [7, 5, 3, 1]
