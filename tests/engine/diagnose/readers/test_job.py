"""What a launcher tells: places and groups against the layout's own, and broken descriptions."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.job import NOTHING, Job, read_job, read_members
from engine.spec.layout import AXES, ParallelLayout

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_places_and_groups_are_those_of_the_layout(tp, dp, pp):
    layout = ParallelLayout(tp=tp, dp=dp, pp=pp)
    job = Job("j", layout.world_size, (("tp", tp), ("dp", dp), ("pp", pp)), {})
    for axis in AXES:
        assert job.degree(axis) == layout.degree(axis)
        for rank in range(job.world):
            assert job.place(axis, rank) == getattr(layout.coord(rank), axis)
            assert job.group(axis, rank) == layout.group(axis, rank)


def test_an_axis_that_is_not_known_has_no_group():
    job = Job("j", 4, (("tp", 4),), {})
    assert (job.group("ep", 3), job.place("ep", 3), job.degree("ep")) == ((), 0, 1)


def test_ranks_run_in_the_order_that_the_job_names(tmp_path):
    text = {"job": "big", "world_size": 8, "tp": 2, "pp": 2, "dp": 2, "order": "tp-pp-dp"}
    (tmp_path / "job.json").write_text(json.dumps(text))
    job = read_job(tmp_path)
    assert (job.name, job.world) == ("big", 8)
    assert job.degrees == (("tp", 2), ("pp", 2), ("dp", 2))
    assert job.group("pp", 5) == (5, 7)
    assert job.group("dp", 5) == (1, 5)
    del text["order"]
    (tmp_path / "job.json").write_text(json.dumps(text))
    assert read_job(tmp_path).group("pp", 5) == (1, 5)


def test_a_folder_without_a_description_still_has_its_groups(tmp_path):
    assert read_job(tmp_path) == NOTHING
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "rank_0.json").write_text('{"7": {"desc": "dp", "ranks": [0, 4]}}')
    assert read_job(tmp_path) == NOTHING._replace(members={"7": (0, 4)})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"3", b"null", b"{}", DEEP, b"\xff", b'{"world_size": 8, "tp": 2}',
        b'{"world_size": "many"}', b'{"world_size": 0, "tp": 0}', b'{"world_size": [8]}',
        b'{"world_size": 4, "tp": -2, "dp": -2}', b'{"world_size": 8, "tp": 2, "dp": 2}',
        b'{"world_size": 2097152, "tp": 2097152}', b'{"world_size": 4, "tp": {}}',
    ],
)  # fmt: skip
def test_a_description_that_does_not_add_up_is_refused(tmp_path, data):
    (tmp_path / "job.json").write_bytes(data)
    with pytest.raises(FileFault):
        read_job(tmp_path)


def test_a_world_alone_is_known_without_its_degrees(tmp_path):
    (tmp_path / "job.json").write_text('{"world_size": 8}')
    assert (read_job(tmp_path).world, read_job(tmp_path).degrees) == (8, ())
    assert read_job(tmp_path).group("dp", 3) == ()


def test_a_world_of_a_million_is_the_largest(tmp_path):
    (tmp_path / "job.json").write_text('{"world_size": 1048576, "dp": 1048576}')
    assert read_job(tmp_path).degree("dp") == 1 << 20


def test_groups_of_all_ranks_come_together_and_bad_files_are_skipped(tmp_path):
    good = {"rank_0.json": '{"3": {"desc": "tp", "ranks": [0, 1]}, "4": {"desc": "no ranks"}}',
            "rank_1.json": '{"5": {"ranks": [1, 5]}}'}  # fmt: skip
    bad = {"rank_2.json": b"", "rank_3.json": b"[1]", "rank_4.json": b'{"6": {"ranks": ["a"]}}',
           "rank_5.json": DEEP, "rank_6.json": b'{"6": {"desc": "\xff"}}', "rank_7.json": b"{",
           "note.txt": b'{"8": {"ranks": [1]}}'}  # fmt: skip
    for name, text in good.items():
        (tmp_path / name).write_text(text)
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    assert read_members(tmp_path) == {"3": (0, 1), "5": (1, 5)}
    assert read_members(tmp_path / "none") == {}
