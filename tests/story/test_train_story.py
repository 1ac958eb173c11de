"""A run through the command line: stop, go on, move, interrupt, kill; the same numbers."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
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
    assert msctl("train", recipe, "--run", parts, "--steps", 3).returncode == 0
    shutil.copytree(parts, moved)
    assert msctl("train", recipe, "--run", parts).returncode == 0
    assert [row[0] for row in numbers(whole)] == list(range(1, 9))
    assert numbers(parts) == numbers(whole)

    assert msctl("train", recipe, "--run", moved, *OTHER).returncode == 0
    for (step, loss, norm), (same, a, b) in zip(numbers(whole), numbers(moved), strict=True):
        assert step == same
        assert abs(loss - a) <= FLOAT64_TOLERANCE * abs(loss)
        assert abs(norm - b) <= FLOAT64_TOLERANCE * abs(norm)

    files = event_files(whole / "events")
    assert list(files) == [0, 1, 2, 3]
    for path in files.values():
        names = {event.name for event in read_events(path)}  # refuses what the schema lacks
        assert {"clock", "step", "forward", "backward", "optimizer", "end"} <= names
    assert any((whole / "tensorboard").iterdir())
    assert msctl("diagnose", whole, "--json").returncode in (0, 4)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A recipe in fp32 on a folder of text, all ranks of it, long enough to be cut short."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(64):
        line = " ".join(str(n * n % (i + 7)) for n in range(200))
        (folder / f"{i}.txt").write_text(f"squares modulo {i + 7}: {line}\n")
    path = tmp_path / "text.toml"
    made = RECIPE.format(precision="fp32").replace("vocab = 64", "vocab = 256")
    made = made.replace('format = "synthetic"', f'source = ["{folder}"]\ncache = "{tmp_path}/c"')
    made = made.replace("steps = 8", "steps = 24").replace("global_batch = 8", "global_batch = 4")
    path.write_text(made + "[checkpoint]\nevery = 5\n")
    return path


def start(recipe: Path, run: Path, *, steps: int) -> "subprocess.Popen[bytes]":
    """A run in a process group of its own; returns once some steps are done."""
    line = [sys.executable, "-m", "msctl", "train", str(recipe), "--run", str(run)]
    started = subprocess.Popen(line, stderr=subprocess.DEVNULL, start_new_session=True)
    path = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert time.monotonic() < deadline, "no step was done"
        time.sleep(0.01)
    return started


def processes_of(run: Path) -> list[int]:
    """Processes whose output goes to the run's logs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if Path(os.readlink(path)).parent == run / "log":
                found.append(int(path.parts[2]))
    return found


def test_interrupted_and_killed_runs_go_on_as_if_nothing_had_been(
    text: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert msctl("train", text, "--run", whole).returncode == 0

    interrupted = start(text, cut, steps=2)
    os.killpg(interrupted.pid, signal.SIGINT)
    assert interrupted.wait(timeout=60) == 130
    done = len(numbers(cut))
    assert catalog(cut / "ckpt")[-1].step == done
    assert msgspec.json.decode((cut / "result.json").read_bytes())["ended"] == "interrupted"

    killed = start(text, cut, steps=done + 6)
    assert len(processes_of(cut)) == 7, "an executor, a nursery, a loader and four ranks"
    killed.kill()
    killed.wait()
    deadline = time.monotonic() + 20
    while processes_of(cut):
        assert time.monotonic() < deadline, "ranks outlive their driver"
        time.sleep(0.02)

    ended = msctl("train", text, "--run", cut)
    assert ended.returncode == 0, ended.stderr
    assert numbers(cut) == numbers(whole)
    rows = [json.loads(line) for line in (cut / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val_loss_per_byte"] < rows[0]["loss"], "text has been learnt"


def test_a_dry_run_starts_nothing(recipe: Path, tmp_path: Path) -> None:
    ended = msctl("train", recipe, "--dry-run", "--runs", tmp_path / "runs", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["world"] == 4
    assert not (tmp_path / "runs").exists()
