"""What is shown of a job, a start elsewhere and a drill; a job that is over is followed too."""

from engine.job.drills import DrillReport, Score
from engine.job.view import JobView, NodeView, ViewWriter
from msctl.commands.train_show import line_of, show_drill, show_view
from msctl.ui import Ui

VIEW = JobView(
    job="tiny", state="done", attempt=1, driver_pid=1, time_s=5.0, step=200, total_steps=200,
    loss=2.0, restarts=1, incidents=("rank 3 was ended by SIGKILL",),
    nodes=(NodeView(node="a", state="active", ranks=(0, 1)), NodeView(node="b", state="lost")),
)  # fmt: skip


def test_a_job_in_one_line():
    assert line_of(VIEW) == (
        "tiny done: step 200/200  loss 2.0000  MFU 0.0 %  1 of 2 nodes well  1 restart"
    )


def test_a_job_with_its_nodes_and_incidents(capsys):
    show_view(Ui(), VIEW)
    out = capsys.readouterr().out
    assert "a\tactive\t0-1" in out
    assert "b\tlost\t-" in out
    assert "rank 3 was ended by SIGKILL" in out


def test_a_drill_has_a_row_per_fault(capsys):
    scores = (
        Score(fault="kill:rank=3@step=20", came=True, is_passed=True, detected_by="exit of a rank",
              detected_s=0.25, is_located=True, named="b rank 3", recovered_s=3.5, steps_lost=4),
        Score(fault="nan:rank=0@step=9"),
    )  # fmt: skip
    report = DrillReport(job="tiny", ended="done", steps=200, restarts=1, scores=scores)
    show_drill(Ui(), report)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == ["kill:rank=3@step=20", "passed", "exit of a rank", "250 ms", "yes",
                       "b rank 3", "3.5 s", "4"]  # fmt: skip
    assert rows[3][:2] == ["nan:rank=0@step=9", "never came"]


def test_a_run_that_is_over_is_followed_to_its_end(msctl, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    ViewWriter(folder).write(VIEW)
    ended = msctl("train", "tiny", "--follow", "--runs", str(tmp_path))
    assert ended.code == 0
    assert "tiny done: step 200/200" in ended.out


def test_a_run_that_never_was_cannot_be_followed(msctl, tmp_path):
    ended = msctl("train", "none", "--follow", "--runs", str(tmp_path))
    assert ended.code == 5
    assert "no job was driven" in ended.err
