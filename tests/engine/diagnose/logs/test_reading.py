"""All logs of a job: which files, in which order, with progress and faults."""

import os

import pytest

from engine.diagnose.logs import reading
from engine.diagnose.logs.reading import log_files, read_logs, scan_batch
from engine.diagnose.logs.scan import Scanner

OOM = "[rank{r}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"


@pytest.fixture
def job(tmp_path):
    for rank in range(3):
        (tmp_path / f"rank_{rank}.log").write_text(f"[rank{rank}] iteration 1 loss 2\n" * 9)
    with (tmp_path / "rank_1.log").open("a") as file:
        file.write(OOM.format(r=1))
    (tmp_path / "truth.json").write_text('{"error": "KeyError: 1"}')
    (tmp_path / "README.md").write_text("KeyError: 'readme'\n")
    return tmp_path


def test_notes_about_a_job_are_no_logs_of_it(job):
    assert [p.name for p in log_files(job)] == ["rank_0.log", "rank_1.log", "rank_2.log"]
    assert log_files(job / "truth.json") == [job / "truth.json"]


def test_what_all_files_say_together(job):
    found, files, faults = read_logs([job])
    assert (files, faults) == (3, [])
    assert (found.findings[0].category, found.findings[0].ranks) == ("cuda_oom", (1,))
    assert found.ranks == {0, 1, 2}
    assert found.world == 3


def test_several_places_are_read_and_a_file_is_below_its_own_folder(job, tmp_path):
    found, files, _ = read_logs([job / "rank_1.log", job / "rank_0.log"])
    assert files == 2
    assert found.findings[0].ranks == (1,)


def test_progress_grows_to_one(job, monkeypatch):
    monkeypatch.setattr(reading, "_BATCH", 1)
    seen = []
    read_logs([job], on_progress=seen.append)
    sizes = [os.path.getsize(job / f"rank_{r}.log") for r in range(3)]
    assert seen == pytest.approx([sum(sizes[: n + 1]) / sum(sizes) for n in range(3)])
    assert seen[-1] == 1.0


def test_nothing_to_read_is_no_error(tmp_path):
    assert read_logs([tmp_path])[1:] == (0, [])
    found, files, faults = read_logs([tmp_path / "gone.log"])
    assert (files, found.findings) == (0, ())
    assert faults[0][0] == str(tmp_path / "gone.log")


def test_a_batch_in_a_process_of_its_own_says_the_same(job):
    paths = log_files(job)
    scanner = Scanner()
    assert scan_batch(paths) == [scanner.scan(path) for path in paths]


@pytest.mark.multi
def test_over_several_processes_the_answer_is_the_same(job, monkeypatch):
    alone = read_logs([job])
    monkeypatch.setattr(reading, "_ALONE", 0)
    monkeypatch.setattr(reading, "_BATCH", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert read_logs([job]) == alone
