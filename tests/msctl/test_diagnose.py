import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "diagnose"))
from synthetic import write_run

from engine.errors import TraceError
from engine.spec.layout import ParallelLayout
from msctl.app import main
from msctl.commands.diagnose import _step_of_timeline

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "runs" / "a-healthy", LAYOUT)
    write_run(
        tmp_path / "runs" / "b-slow", LAYOUT, factor=lambda rank, step: 1.2 if rank == 6 else 1.0
    )
    return tmp_path / "runs"


def test_a_healthy_run_ends_with_0(runs, capsys):
    assert main(["diagnose", str(runs / "a-healthy")]) == 0
    out = capsys.readouterr().out
    assert "VERDICT  healthy" in out
    assert "forward" in out


def test_a_bad_verdict_ends_with_4_and_stands_in_the_first_ten_lines(runs, capsys):
    assert main(["diagnose", "--job", "last", "--runs", str(runs)]) == 4
    first = capsys.readouterr().out.splitlines()[:10]
    assert any(line.startswith("VERDICT") and "rank 6" in line for line in first)


@pytest.mark.parametrize("job", ["b-slow", "b-", "last"])
def test_a_job_is_found_by_id_prefix_and_last(runs, capsys, job):
    assert main(["diagnose", "--job", job, "--runs", str(runs), "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert report["job"] == "b-slow"
    verdict = report["verdict"]
    assert verdict["ranks"] == [6]
    assert {"kind", "category", "ranks", "nodes", "line", "file", "confidence", "next"} <= set(
        verdict
    )


@pytest.mark.parametrize(
    "arguments",
    [["diagnose"], ["diagnose", "nowhere"], ["diagnose", "--job", "zz", "--runs", "nowhere"]],
)
def test_what_cannot_be_read_ends_with_3_and_a_remedy(arguments, capsys):
    assert main(arguments) == 3
    assert "hint:" in capsys.readouterr().err


@pytest.fixture
def logs(tmp_path):
    """A foreign job whose rank 0 failed."""
    (tmp_path / "job" / "logs").mkdir(parents=True)
    (tmp_path / "job" / "logs" / "rank_0.log").write_text("KeyError: 'labels'\n")
    return tmp_path / "job" / "logs"


@pytest.mark.parametrize("option", ["--html", "--metrics", "--findings", "--timeline"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_that_cannot_be_written_costs_no_verdict(runs, capsys, option, as_json):
    more = ["--json"] if as_json else []
    target = runs / "nowhere" / "file.json"
    assert main(["diagnose", str(runs / "b-slow"), option, str(target), *more]) == 5
    found = capsys.readouterr()
    assert f"error: {target} cannot be written" in found.err
    if as_json:
        assert json.loads(found.out)["verdict"]["ranks"] == [6]
    else:
        assert "VERDICT  degraded" in found.out


def test_a_heat_map_that_a_foreign_job_has_not_costs_no_verdict_and_no_file(logs, capsys):
    page = logs.parent / "r.html"
    given = ["diagnose", "--logs", str(logs), "--heatmap", "--json", "--html", str(page)]
    assert main(given) == 3
    found = capsys.readouterr()
    assert json.loads(found.out)["verdict"]["category"] == "code_error"
    assert "error: --heatmap needs the events of a run" in found.err
    assert page.exists()


@pytest.mark.parametrize(
    "more", [["--timeline", "t.json"], ["--step", "3"], ["--last", "5"], ["--step", "3", "--json"]]
)
def test_what_has_no_effect_on_a_foreign_job_is_a_usage_error(logs, capsys, more):
    for place in (["--logs", str(logs)], [str(logs.parent)]):
        assert main(["diagnose", *place, *more]) == 2
        found = capsys.readouterr()
        assert f"{more[0]}: it works on the events of a run of msctl" in found.out + found.err
        assert "`msctl diagnose --help`" in found.out + found.err


def test_a_timeline_of_an_unknown_form_and_a_step_without_one_are_usage_errors(runs, capsys):
    run = str(runs / "a-healthy")
    assert main(["diagnose", run, "--timeline", str(runs / "t.foo")]) == 2
    message = capsys.readouterr().err
    assert ".json" in message and ".pftrace" in message  # noqa: PT018 - both are one fact
    assert not (runs / "t.foo").exists()
    assert main(["diagnose", run, "--step", "3"]) == 2
    assert "--timeline" in capsys.readouterr().err


def test_a_run_and_a_job_have_the_name_of_the_folder_one_stands_in(runs, logs, monkeypatch, capsys):
    monkeypatch.chdir(runs / "a-healthy")
    assert main(["diagnose", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "a-healthy"
    monkeypatch.chdir(logs)
    assert main(["diagnose", "..", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["job"] == "job"


def test_names_that_are_no_utf8_reach_every_form(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"r\xe9_rank_5.log")).write_text("KeyError: 'labels'\n")
    files = {name: tmp_path / name for name in ("html", "metrics", "findings")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(["diagnose", str(folder), "--json", *options]) == 4
    report = json.loads(capsys.readouterr().out)
    assert report["job"] == "caf\\xe9"
    assert report["verdict"]["file"].endswith("caf\\xe9/r\\xe9_rank_5.log")
    assert all(path.stat().st_size for path in files.values())
    assert main(["diagnose", str(folder) + "x", "--json"]) == 3
    assert "caf\\xe9x" in json.loads(capsys.readouterr().out)["error"]["what"]


class Steps(NamedTuple):
    steps: tuple[int, ...]
    summed: frozenset[int]


@pytest.mark.parametrize(
    ("steps", "summed", "wish", "chosen"),
    [
        (range(1, 9), (), None, 7),
        (range(1, 9), (5, 6, 7, 8), None, 4),
        (range(1, 9), range(1, 8), None, 8),
        (range(1, 4), range(1, 4), None, 3),
        (range(1, 9), (5, 6, 7, 8), 2, 2),
    ],
)
def test_the_newest_step_that_was_kept_whole_is_drawn(steps, summed, wish, chosen):
    assert _step_of_timeline(Steps(tuple(steps), frozenset(summed)), wish) == chosen


def test_a_step_that_was_summed_up_is_not_drawn_and_the_nearest_other_is_named():
    with pytest.raises(TraceError, match="step 6 was summed up") as caught:
        _step_of_timeline(Steps(tuple(range(1, 9)), frozenset((5, 6, 7, 8))), 6)
    assert "draw step 4" in caught.value.remedy
