"""A run is found by its id, a unique prefix, its recipe's name, or as the last one."""

import os

import pytest

from engine.diagnose.jobs import find_run, is_run, runs_under
from engine.errors import TraceError


def make(root, name, at, recipe=""):
    folder = root / name
    (folder / "events").mkdir(parents=True)
    (folder / "events" / "rank-00000.jsonl").write_text("")
    if recipe:
        (folder / "recipe.toml").write_text(f'[job]\nname = "{recipe}"\n')
    for path in (*folder.iterdir(), folder):
        os.utime(path, (at, at))
    return folder


@pytest.fixture
def root(tmp_path):
    make(tmp_path, "a-01", 300, "tiny")
    make(tmp_path, "a-02", 100, "tiny")
    make(tmp_path, "b", 200, "large")
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("")
    return tmp_path


def test_runs_come_in_the_order_in_which_they_were_written_to(root):
    assert [run.name for run in runs_under(root)] == ["a-02", "b", "a-01"]
    (root / "a-02" / "metrics.jsonl").write_text("")
    os.utime(root / "a-02" / "metrics.jsonl", (400, 400))
    os.utime(root / "a-02", (100, 100))
    assert find_run("last", root).name == "a-02"


def test_a_recipe_or_events_make_a_run(root):
    assert not is_run(root / "empty")
    (root / "empty" / "recipe.toml").write_text("")
    assert is_run(root / "empty")
    assert runs_under(root / "nowhere") == []


@pytest.mark.parametrize(
    ("job", "name"),
    [("last", "a-01"), ("b", "b"), ("a-01", "a-01"), ("large", "b"), ("tiny", "a-01")],
)
def test_each_way_to_call_a_run(root, job, name):
    assert find_run(job, root).name == name


def test_an_exact_id_wins_over_longer_ones_and_a_prefix_over_a_recipes_name(root):
    make(root, "b-2", 500, "a-0")
    assert find_run("b", root).name == "b"
    make(root, "tiny-1", 50)
    assert find_run("tiny", root).name == "tiny-1"


def test_an_ambiguous_prefix_lists_its_runs(root):
    with pytest.raises(TraceError, match=r"prefix of several runs .*: a-02, a-01$") as caught:
        find_run("a-", root)
    assert "--job a-01" in caught.value.remedy


def test_an_unknown_job_lists_what_there_is(root):
    with pytest.raises(TraceError, match=r"none of the runs .*: a-02, b, a-01$"):
        find_run("zzz", root)
    with pytest.raises(TraceError, match="no runs here") as caught:
        find_run("last", root / "empty")
    assert "--runs" in caught.value.remedy


def test_a_name_is_looked_for_in_the_first_lines_only_and_whatever_its_bytes(root):
    (root / "b" / "recipe.toml").write_bytes(b"# \xff\n" + b"#" * (1 << 16) + b'\nname = "far"\n')
    with pytest.raises(TraceError):
        find_run("far", root)
    (root / "b" / "recipe.toml").write_bytes(b'name = "\xffx"\n')
    assert find_run("�x", root).name == "b"


def test_a_run_that_may_not_be_looked_at_hides_no_other(root, monkeypatch):
    def is_file(path):
        if path.parent.name in ("b", "a-01"):
            raise PermissionError(13, "Permission denied")
        return path.exists()

    monkeypatch.setattr("pathlib.Path.is_file", is_file)
    assert find_run("last", root).name == "a-02"
    assert not is_run(root / "b")


def test_a_runs_folder_that_may_not_be_listed_is_an_error(tmp_path):
    (tmp_path / "runs").symlink_to("runs")
    with pytest.raises(TraceError, match="runs: cannot be looked at"):
        find_run("last", tmp_path / "runs")


def test_a_pipe_for_a_recipe_is_not_waited_for(root):
    (root / "b" / "recipe.toml").unlink()
    os.mkfifo(root / "b" / "recipe.toml")
    with pytest.raises(TraceError, match="none of the"):
        find_run("large", root)
