"""A run through the command line: stop, go on, change the layout, interrupt; the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.ckpt.catalog import catalog
from engine.events.reader import event_files, read_events

pytestmark = [pytest.mark.multi, pytest.mark.slow]

RECIPE = """
name = "story"

[model]
layers = 4
hidden = 32
heads = 4
vocab = 64
seq = 16
position = "rotary"
dropout = 0.1

[layout]
tp = 2
pp = 2
vpp = 2

[batch]
global_batch = 8
micro_batch = 1

[optimizer]
lr = 3e-3

[data]
format = "synthetic"

[train]
steps = 8
precision = "{precision}"
device = "cpu"
eval_batches = 1
"""
OTHER = ["--set", "layout.tp=1", "--set", "layout.vpp=1", "--set", "layout.dp=2"]
FLOAT64_TOLERANCE = 1e-10


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "story.toml"
    path.write_text(RECIPE.format(precision="fp64"))
    return path


def msctl(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "msctl", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)


def numbers(run: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["tokens_per_s"] > 0
        assert line["step_s"] > 0
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def test_stopped_and_continued_is_never_having_stopped(recipe: Path, tmp_path: Path) -> None:
    whole, parts, moved = tmp_path / "whole", tmp_path / "parts", tmp_path / "moved"
    ended = msctl("train", recipe, "--run", whole, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["steps"] == 8
    for steps in (3, 1, 0):
        assert msctl("train", recipe, "--run", parts, "--steps", steps).returncode == 0
    assert [row[0] for row in numbers(whole)] == list(range(1, 9))
    assert numbers(parts) == numbers(whole)

    assert msctl("train", recipe, "--run", moved, "--steps", 3).returncode == 0
    assert msctl("train", recipe, "--run", moved, *OTHER).returncode == 0
    for (step, loss, norm), (same, a, b) in zip(numbers(whole), numbers(moved), strict=True):
        assert step == same
        assert abs(loss - a) <= FLOAT64_TOLERANCE * abs(loss)
        assert abs(norm - b) <= FLOAT64_TOLERANCE * abs(norm)

    files = event_files(whole / "events")
    assert list(files) == [0, 1, 2, 3]
    for path in files.values():
        names = {event.name for event in read_events(path)}
        assert {"clock", "step", "forward", "backward", "optimizer", "end"} <= names
    assert any((whole / "tensorboard").iterdir())
    assert msctl("diagnose", whole, "--json").returncode in (0, 4)


def test_an_interrupt_saves_and_the_run_goes_on(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = [sys.executable, "-m", "msctl", "train", str(recipe), "--run", str(run)]
    line += ["--set", "train.steps=400"]
    started = subprocess.Popen(line, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len(numbers(run)) < 2:
        assert time.monotonic() < deadline, "no step was done"
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(timeout=60) == 130
    done = len(numbers(run))
    assert catalog(run / "ckpt")[-1].step == done
    again = msctl("train", recipe, "--run", run, "--steps", 1, "--set", "train.steps=400")
    assert again.returncode == 0, again.stderr
    assert [row[0] for row in numbers(run)] == list(range(1, done + 2))
