"""`msctl train` in this process: what it prints, refuses and returns."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from engine.comm.listen import listening_socket
from engine.job.run import RunResult, read_result
from msctl.commands.train import show_result
from msctl.ui import Ui
from tests.engine.ckpt.state import dense, save

RECIPE = """
name = "case"
[model]
layers = 4
hidden = 16
heads = 2
vocab = 32
seq = 8
[layout]
pp = 2
[batch]
global_batch = 4
[data]
format = "synthetic"
[train]
steps = 3
device = "cpu"
eval_batches = 1
[monitor]
tensorboard = false
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "case.toml"
    path.write_text(RECIPE)
    return str(path)


def test_a_dry_run_shows_layout_memory_and_schedule_and_starts_nothing(
    msctl, recipe, golden, tmp_path
):
    ended = msctl("train", recipe, "--dry-run", "--runs", str(tmp_path / "runs"))
    assert (ended.code, ended.err) == (0, "")
    golden("train-dry-run.txt", ended.out)
    assert not (tmp_path / "runs").exists()


def test_the_papers_run_can_be_looked_at_anywhere(msctl, root, golden):
    ended = msctl("train", str(root / "recipes" / "175b.toml"), "--dry-run")
    assert ended.code == 0
    golden("train-dry-run-175b.txt", ended.out)


def test_a_dry_run_as_json_has_the_nouns_names(msctl, recipe):
    document = json.loads(msctl("train", recipe, "--dry-run", "--json").out)
    assert document["world"] == 2
    assert document["bubble"] == pytest.approx(1 / 4)
    assert [stage["stage"] for stage in document["stages"]] == [0, 1]
    assert all(stage["memory_bytes"] > 0 for stage in document["stages"])


@pytest.mark.parametrize("wish", ["soon", "-1", "1.5", ""])
def test_a_word_that_resume_does_not_know_is_refused(msctl, recipe, wish):
    ended = msctl("train", recipe, f"--resume={wish}")
    assert ended.code == 3
    assert f"--resume {wish}: not auto, never or a step" in ended.err
    assert "hint: use --resume auto" in ended.err


@pytest.mark.parametrize(
    ("sets", "code", "said"),
    [
        (["layout.pp=3"], 3, "layout.pp"),
        (["train.device=cuda", "layout.dp=4"], 5, "CUDA devices"),
        (["model.hidden=65536", "model.layers=400"], 5, "weights and optimizer need about"),
        (
            ["data.format=text", "data.source=/no/such/place", "model.vocab=256"],
            3,
            "/no/such/place",
        ),
    ],
)
def test_wrong_input_and_wrong_machine_have_their_codes(msctl, recipe, tmp_path, sets, code, said):
    options = [part for text in sets for part in ("--set", text)]
    ended = msctl("train", recipe, "--runs", str(tmp_path / "runs"), *options)
    assert ended.code == code, ended.err
    assert said in ended.err
    assert "hint: " in ended.err
    assert ended.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_drill_that_the_job_cannot_have_is_refused_before_anything(msctl, recipe, tmp_path, more):
    for text, said in (("clock:node=5@step=1", "no node 5"), ("kill:rank=9@step=1", "no rank 9")):
        ended = msctl("train", recipe, "--run", str(tmp_path / "r"), "--drill", text, *more)
        assert (ended.code, said in ended.err) == (3, True), ended.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--drill", "kill"], "--drill"),
        (["--dry-run"], "--dry-run"),
        (["--on", "slurm", "--set", "train.store=redis"], "--on"),
        (["--drill", "kill", "--dry-run", "--resume", "never"], "--drill, --dry-run, --resume"),
    ],
)
def test_ablate_passes_over_no_option_in_silence(msctl, recipe, tmp_path, more, said):
    ended = msctl("train", recipe, "--ablate", "--runs", str(tmp_path / "runs"), *more)
    assert (ended.code, ended.out) == (3, "")
    assert f"--ablate does not go with {said}" in ended.err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_refuses_what_the_run_would(msctl, recipe, tmp_path):
    run = str(tmp_path / "run")
    ended = msctl("train", recipe, "--run", run, "--dry-run", "--on", "slurm")
    assert (ended.code, "train.store is tcp" in ended.err) == (3, True)
    ended = msctl("train", recipe, "--run", run, "--dry-run", "--resume", "2")
    assert (ended.code, "no committed checkpoint of step 2" in ended.err) == (3, True)
    more = ("--set", "data.eod=</s>", "--set", "data.tokenizer=bytes")
    ended = msctl("train", recipe, "--run", run, "--dry-run", *more)
    assert (ended.code, "data.eod" in ended.err) == (3, True)


def test_a_run_beyond_the_recipes_end_starts_nothing(msctl, recipe, tmp_path):
    save(tmp_path / "run" / "ckpt", 7, 1, 1, dense(torch.float32))
    (tmp_path / "run" / "recipe.toml").write_text(RECIPE)
    ended = msctl("train", recipe, "--run", str(tmp_path / "run"))
    assert ended.code == 3
    assert "it would go on after step 7, but train.steps = 3" in ended.err
    assert not (tmp_path / "run" / "log").exists()


def test_a_run_that_must_not_be_overwritten_is_refused(msctl, recipe, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(RECIPE)
    ended = msctl("train", recipe, "--run", str(run), "--resume", "never")
    assert ended.code == 3
    assert "holds a run already" in ended.err


def test_another_model_in_the_folder_is_refused_before_anything_starts(msctl, recipe, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(RECIPE.replace("hidden = 16", "hidden = 32"))
    ended = msctl("train", recipe, "--run", str(run))
    assert ended.code == 3
    assert "model.hidden = 16 (it has 32)" in ended.err
    assert not (run / "log").exists()


def test_a_taken_port_is_a_lack_of_this_machine(msctl, recipe, tmp_path):
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        ended = msctl("train", recipe, "--run", str(tmp_path / "r"), "--set", f"train.port={port}")
    assert ended.code == 5
    assert f"train.port = {port}" in ended.err
    assert "set train.port = 0" in ended.err


def test_help_says_what_it_does_with_examples(msctl):
    ended = msctl("train", "--help")
    assert ended.code == 0
    for text in ("Train a model from a recipe", "Examples", "--dry-run", "Ctrl-C saves"):
        assert text in ended.out


def test_a_result_without_steps_is_shown_with_dashes(capsys):
    result = RunResult(
        job="r", folder="r", ended="interrupted", steps=0, total_steps=3, tokens=0, seconds=1.0
    )
    show_result(Ui(), result)
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert rows["steps"] == "0 of 3"
    assert rows["loss"] == rows["held-out loss"] == "-"


@pytest.mark.multi
def test_a_run_prints_one_document_and_talks_on_stderr(msctl, recipe, tmp_path):
    run = tmp_path / "run"
    ended = msctl("train", recipe, "--run", str(run), "--json", "--steps", "2")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert (document["ended"], document["steps"], document["total_steps"]) == ("done", 2, 3)
    assert document["job"] == "run"
    hint = f"hint: `msctl diagnose {run}` says"
    for text in ("samples", "nursery ready", "step 1/3", "step 2/3", f"wrote {run}", hint):
        assert text in ended.err
    again = msctl("train", recipe, "--run", str(run), "-q")
    assert (again.code, again.err) == (0, "")
    rows = dict(line.split("\t") for line in again.out.splitlines())
    assert (rows["ended"], rows["steps"]) == ("done", "3 of 3")


@pytest.mark.multi
def test_a_failed_run_ends_with_6_and_an_interrupted_one_with_130(msctl, recipe, tmp_path):
    keys = ("optimizer.lr=1e30", "optimizer.clip_norm=0", "job.bad_numbers=stop")
    explode = [word for key in keys for word in ("--set", key)]
    ended = msctl("train", recipe, "--run", str(tmp_path / "a"), "--json", *explode)
    assert ended.code == 6
    error = json.loads(ended.out)["error"]
    assert (error["kind"], error["exit"]) == ("RunFailed", 6)
    assert "not finite" in error["what"]
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    ended = msctl("train", recipe, "--run", str(tmp_path / "b"), "--json")
    timer.join()
    assert ended.code == 130
    assert json.loads(ended.out)["ended"] == "interrupted"
    result = read_result(tmp_path / "b")
    assert result is not None
    assert result.ended == "interrupted"
