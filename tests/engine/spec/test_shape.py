from engine.spec.shape import KINDS, legal, resolve_kind


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
