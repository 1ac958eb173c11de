import msgspec
from hypothesis import given

from engine.schedule.action import Action
from engine.schedule.build import build
from engine.schedule.schedule import Schedule
from tests.engine.schedule.shapes import legal_shapes


@given(legal_shapes())
def test_chunks_of_the_stages_partition_the_chunks(shape):
    schedule = build(*shape)
    held = [schedule.chunks_of(stage) for stage in range(schedule.pp)]
    assert sorted(c for chunks in held for c in chunks) == list(range(schedule.chunks))
    assert all(schedule.stage_of(c) == stage for stage, chunks in enumerate(held) for c in chunks)


def test_a_v_runs_down_and_up():
    schedule = Schedule(kind="v", pp=3, vpp=2, microbatches=1, placement="v", stages=((), (), ()))
    assert [schedule.stage_of(c) for c in range(6)] == [0, 1, 2, 2, 1, 0]


def test_text_reads_back():
    schedule = build("interleaved", 2, 2, 4)
    text = msgspec.json.decode(msgspec.json.encode(schedule.text()))
    stages = [[Action.parse(a) for a in text[str(i)]] for i in range(2)]
    assert schedule.with_stages(stages) == schedule
