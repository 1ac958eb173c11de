"""What a fault left behind moves into the incident's folder, whole enough to be diagnosed there."""

from pathlib import Path

import pytest

from engine.events.writer import EventWriter
from engine.job import evidence
from engine.job.evidence import judge, keep_evidence


def run_with_a_failed_rank(run: Path) -> None:
    for rank in range(2):
        events = EventWriter(run / "events" / f"rank-{rank:05d}.jsonl", rank)
        events.clock(world=2, degrees={"tp": 1, "pp": 1, "dp": 2},
                     index={"tp": 0, "pp": 0, "dp": rank})  # fmt: skip
        events.step = 0
        with events.span("step"):
            pass
        if rank:
            events.instant("error", {"what": "boom", "type": "ValueError"})
        events.close(ended=not rank)
    (run / "log").mkdir()
    (run / "log" / "rank-00001.log").write_bytes(b"first line\n" + b"x" * (1 << 19) + b"\nlast\n")
    (run / "recipe.toml").write_text("name = 'x'\n")


def test_events_move_logs_are_cut_to_their_ends_and_the_verdict_names_the_rank(tmp_path: Path):
    run_with_a_failed_rank(tmp_path)
    folder = keep_evidence(tmp_path, 4)
    assert folder.name == "004"
    assert not (tmp_path / "events").exists(), "the next start begins its own"
    assert (folder / "recipe.toml").exists()
    log = (folder / "log" / "rank-00001.log").read_bytes()
    assert log.endswith(b"last\n")
    assert len(log) < 1 << 19
    report = judge(folder)
    assert report is not None
    assert report.verdict.ranks == (1,)
    assert "boom" in (folder / "verdict.txt").read_text()
    assert (folder / "verdict.json").exists()


@pytest.mark.slow
def test_logs_of_a_large_job_are_all_kept_each_a_little(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(evidence, "_MOST_BYTES", 5000 * 100)
    (tmp_path / "log").mkdir()
    for rank in range(5000):
        text = b"".join(b"line %d\n" % number for number in range(20)) + b"rank %d\n" % rank
        (tmp_path / "log" / f"rank-{rank:05d}.log").write_bytes(text)
    folder = keep_evidence(tmp_path, 1)
    kept = sorted((folder / "log").iterdir())
    assert len(kept) == 5000
    for rank in (0, 2500, 4999):
        text = kept[rank].read_bytes()
        assert text.startswith(b"line ")
        assert text.endswith(b"rank %d\n" % rank)
        assert len(text) <= 100


def test_without_events_there_is_no_verdict_but_no_error_either(tmp_path: Path):
    folder = keep_evidence(tmp_path, 1)
    assert judge(folder) is None
    assert "no verdict" in (folder / "verdict.txt").read_text()
