from engine.spec.shape import KINDS, legal, resolve_kind, round_size


def test_auto_follows_the_chunks():
    assert [resolve_kind("auto", vpp) for vpp in (1, 2)] == ["1f1b", "interleaved"]
    assert resolve_kind("gpipe", 1) == "gpipe"


def test_legal_shapes():
    assert all(legal(kind, 4, 1, 8) is None for kind in KINDS if kind != "zb-v")
    assert legal("interleaved", 4, 3, 8) is None
    assert legal("interleaved", 4, 3, 2) is None  # fewer micro-batches than stages: one short round


def test_illegal_shapes_say_why():
    assert "one chunk per stage" in (legal("1f1b", 4, 2, 8) or "")
    assert "equal rounds" in (legal("interleaved", 4, 2, 9) or "")
    assert "at least 1" in (legal("gpipe", 0, 1, 8) or "")
    assert "there is no schedule" in (legal("zigzag", 4, 1, 8) or "")


def test_a_group_fills_the_pipeline_and_divides_the_micro_batches():
    assert legal("interleaved", 2, 2, 8, 4) is None
    assert legal("zero-bubble", 2, 1, 6, 3) is None
    assert "cannot fill" in (legal("interleaved", 4, 2, 8, 2) or "")
    assert "rounds of schedule.group = 3" in (legal("interleaved", 2, 2, 8, 3) or "")
    assert "has no rounds" in (legal("1f1b", 2, 1, 8, 4) or "")
    assert [round_size(4, 10), round_size(4, 2), round_size(4, 16, 8)] == [5, 2, 8]


def test_chunks_of_one_stage_allow_a_run_ahead_of_two():
    assert legal("interleaved", 4, 2, 8, 0, 2) is None
    assert "wait for each other" in (legal("interleaved", 4, 2, 8, 0, 3) or "")
    assert legal("zero-bubble", 4, 1, 8, 0, 4) is None
    assert "is fixed" in (legal("gpipe", 4, 1, 8, 0, 2) or "")
