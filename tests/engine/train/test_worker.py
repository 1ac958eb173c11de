"""A rank from start to end: what it leaves when all goes well, and when nothing does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.ranks import ROOT, World
from engine.comm.world import Rendezvous
from engine.events.reader import read_events
from engine.spec.load import dump_recipe
from engine.train.failure import read_failures
from engine.train.metrics import read_metrics
from engine.train.task import RankTask
from engine.train.worker import run_rank
from tests.engine.train.single import recipe

pytestmark = pytest.mark.multi


def folder_of(path: Path, **sections) -> Path:
    """A run folder as a driver prepares it."""
    path.mkdir(exist_ok=True)
    sections = {"monitor": {"events": True}, **sections}
    (path / "recipe.toml").write_text(dump_recipe(recipe(**sections)))
    return path


def as_rank(rank: int, meet: Rendezvous, args: dict) -> dict:
    """Run a worker in this forked rank; its code, and what it did to signals."""
    world = args["world"]
    task = RankTask(folder=args["folder"], world=world, host=meet.host, port=meet.port)
    code = run_rank(rank, task, meet.listen_fd)
    return {
        "code": code,
        "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


def run(world: World, folder: Path, ranks: int = 1) -> dict:
    args = {"folder": str(folder), "world": ranks}
    (found,) = world.run(f"{__name__}:as_rank", 1, args)
    return found


def test_a_run_leaves_metrics_events_and_a_checkpoint(world: World, tmp_path: Path):
    folder = folder_of(tmp_path / "r")
    assert run(world, folder) == {"code": 0, "sigint": True, "cublas": ":4096:8"}
    assert [m.step for m in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    names = [e.name for e in read_events(folder / "events" / "rank-00000.jsonl")]
    assert names[0] == "clock"
    assert names[-1] == "end"
    assert names.count("step") == 6
    assert (folder / "ckpt" / "step-00000006").is_dir()
    assert read_failures(folder) == []


def test_a_recipe_that_is_wrong_is_an_error_of_input(world: World, tmp_path: Path):
    folder = folder_of(tmp_path / "r")
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("seq = 8", 'seq = "long"'))
    assert run(world, folder)["code"] == 1
    (failure,) = read_failures(folder)
    assert failure.kind == "RecipeError"
    assert "model.seq" in failure.what
    assert failure.remedy


def test_another_number_of_ranks_than_the_layouts_is_refused_at_once(world: World, tmp_path: Path):
    folder = folder_of(tmp_path / "r")
    assert run(world, folder, ranks=2)["code"] == 1
    (failure,) = read_failures(folder)
    assert failure.kind == "LayoutError"
    assert "2 ranks were started, [layout] needs 1" in failure.what


def test_a_loss_that_is_not_finite_ends_the_run_with_an_event(world: World, tmp_path: Path):
    folder = folder_of(tmp_path / "r", optimizer={"lr": 1e30, "clip_norm": 0.0})
    assert run(world, folder)["code"] == 1
    (failure,) = read_failures(folder)
    assert failure.kind == "RunFailed"
    assert "not finite" in failure.what
    last = list(read_events(folder / "events" / "rank-00000.jsonl"))[-1]
    assert (last.name, last.attrs["type"]) == ("error", "BadNumbers")
    assert "not finite" in str(last.attrs["what"])


def test_a_bug_leaves_its_traceback_in_the_log_and_its_class_in_the_record(
    world: World, tmp_path: Path
):
    folder = folder_of(tmp_path / "r")
    (folder / "metrics.jsonl").mkdir()
    assert run(world, folder)["code"] == 1
    (failure,) = read_failures(folder)
    assert failure.kind == "Exception"
    assert failure.what.startswith("IsADirectoryError")


@pytest.mark.slow
def test_torchrun_starts_the_same_ranks(tmp_path: Path):
    folder = folder_of(tmp_path / "r", train={"steps": 2})
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("dp = 1", "dp = 2"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
               "-m", "engine.train.worker", str(folder)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240,
                           env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert [m.step for m in read_metrics(folder / "metrics.jsonl")] == [1, 2]
    assert {p.name for p in (folder / "events").iterdir()} == {
        "rank-00000.jsonl",
        "rank-00001.jsonl",
    }


def test_started_by_hand_it_says_how_it_is_started():
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "engine.train.worker", "runs/x"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120,
                           env=environment, check=False)  # fmt: skip
    assert ended.returncode == 2
    assert "torchrun --nproc-per-node" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
