import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "diagnose"))
from synthetic import write_run

from engine.spec.layout import ParallelLayout
from msctl.app import main

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
