"""Records of failed ranks: written by any error, read from hostile folders."""

from pathlib import Path

import msgspec
import pytest

from engine.comm.lost import PeerLost, lost
from engine.errors import CheckpointError, MissingError
from engine.spec.problem import Problem, RecipeProblems
from engine.train.failure import (
    RankFailure,
    clear_failures,
    failure_of,
    kind_of,
    read_failures,
    write_failure,
)


def test_an_error_of_ours_keeps_its_remedy():
    found = failure_of(3, MissingError("no disk", remedy="buy one"))
    assert (found.rank, found.kind, found.what, found.remedy) == (
        3,
        "MissingError",
        "no disk",
        "buy one",
    )
    assert not found.lost_peer
    assert found.t_s > 1e9


def test_a_bug_is_recorded_by_its_class():
    found = failure_of(0, ZeroDivisionError("division by zero"))
    assert (found.kind, found.what) == ("Exception", "ZeroDivisionError: division by zero")


def test_the_loss_of_a_peer_is_marked():
    found = failure_of(0, lost("all_reduce in group tp", RuntimeError("closed")))
    assert found.lost_peer
    assert found.kind == "RunFailed"


def test_a_kind_is_that_of_the_errors_file_whatever_subclass_was_raised():
    problems = (Problem(keys=("a",), what="a = 0", remedy="set it"),)
    assert kind_of(RecipeProblems(problems)) == "RecipeError"
    assert kind_of(PeerLost("x", remedy="y")) == "RunFailed"
    assert kind_of(CheckpointError("x", remedy="y")) == "CheckpointError"


def test_records_are_read_in_order_of_rank_and_forgotten(tmp_path: Path):
    made = [RankFailure(rank=rank, kind="Exception", what=f"r{rank}") for rank in (10, 2, 0)]
    for failure in made:
        write_failure(tmp_path, failure)
    assert read_failures(tmp_path) == made[::-1]
    clear_failures(tmp_path)
    assert read_failures(tmp_path) == []


def test_an_endless_message_still_fits(tmp_path: Path):
    write_failure(tmp_path, failure_of(0, ValueError("ä" * 1_000_000)))
    (found,) = read_failures(tmp_path)
    assert found.what.startswith("ValueError: ä")
    assert len(found.what) == 4000


def test_nothing_there_is_no_failure(tmp_path: Path):
    assert read_failures(tmp_path) == []
    clear_failures(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"[]", b"\xff", b'{"rank": 0}', b'{"rank":0,"kind":"a","what":"b","extra":1}',
     b"[" * 100_000, b'{"rank":0,"kind":"a","what":"' + b"x" * 1_000_000 + b'"}'],
    ids=["empty", "torn", "list", "bytes", "missing", "extra", "deep", "huge"],
)  # fmt: skip
def test_hostile_records_are_passed_over(tmp_path: Path, bad):
    good = RankFailure(rank=1, kind="RunFailed", what="loss nan")
    write_failure(tmp_path, good)
    (tmp_path / "errors" / "rank-00000.json").write_bytes(bad)
    (tmp_path / "errors" / "rank-00002.json").mkdir()
    (tmp_path / "errors" / "notes.txt").write_text("mine")
    assert read_failures(tmp_path) == [good]


def test_forgetting_leaves_other_files_alone(tmp_path: Path):
    write_failure(tmp_path, RankFailure(rank=0, kind="Exception", what="x"))
    (tmp_path / "errors" / "notes.txt").write_text("mine")
    clear_failures(tmp_path)
    assert [p.name for p in (tmp_path / "errors").iterdir()] == ["notes.txt"]


def test_unknown_fields_of_a_later_version_do_not_pass_for_ours(tmp_path: Path):
    path = tmp_path / "errors"
    path.mkdir()
    (path / "rank-00000.json").write_bytes(msgspec.json.encode({"rank": 0, "why": "?"}))
    assert read_failures(tmp_path) == []
