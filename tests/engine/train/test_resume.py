"""Which checkpoint a run continues from."""

import shutil
from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.train.resume import checkpoint_root, checkpoint_to_resume, run_identity
from tests.engine.train.single import recipe, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    run(folder, recipe(checkpoint={"every": 2, "keep": 0}), steps=4)
    return folder


@pytest.mark.parametrize("wish", ["auto", "never"])
def test_a_new_run_starts_from_nothing(tmp_path: Path, wish):
    assert checkpoint_to_resume(str(tmp_path / "ckpt"), wish) is None


def test_auto_takes_what_there_is_and_never_nothing(trained: Path):
    root = checkpoint_root(trained, "")
    assert checkpoint_to_resume(root, "auto") == str(trained / "ckpt")
    assert checkpoint_to_resume(root, "never") is None


def test_a_number_takes_that_step(trained: Path):
    assert checkpoint_to_resume(f"{trained}/ckpt", "2") == f"{trained}/ckpt/step-00000002"


@pytest.mark.parametrize("wish", ["3", "0", "999999999"])
def test_a_step_that_is_not_there_is_refused_with_a_way_to_see_what_is(trained: Path, wish):
    with pytest.raises(CheckpointError, match=f"no committed checkpoint of step {wish}") as caught:
        checkpoint_to_resume(f"{trained}/ckpt", wish)
    assert f"msctl ckpt list {trained}/ckpt" in caught.value.remedy


def test_a_step_of_an_empty_run_is_refused_too(tmp_path: Path):
    with pytest.raises(CheckpointError):
        checkpoint_to_resume(str(tmp_path), "2")


def test_folders_without_a_marker_do_not_count(tmp_path: Path):
    (tmp_path / "ckpt" / "step-00000005").mkdir(parents=True)
    assert checkpoint_to_resume(f"{tmp_path}/ckpt", "auto") is None
    with pytest.raises(CheckpointError):
        checkpoint_to_resume(f"{tmp_path}/ckpt", "5")


def test_a_step_saved_again_after_a_failed_attempt_counts(trained: Path, tmp_path: Path):
    shutil.copytree(trained / "ckpt" / "step-00000002", tmp_path / "step-00000002.3")
    assert checkpoint_to_resume(str(tmp_path), "2") == f"{tmp_path}/step-00000002.3"


def test_checkpoints_lie_where_the_recipe_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert checkpoint_root(Path("runs/a"), "") == str(tmp_path / "runs/a/ckpt")
    assert checkpoint_root(Path("runs/a"), "s3://b/{run}/") == "s3://b/a"
    assert checkpoint_root(Path("runs/a"), "/mnt/{run}/c") == "/mnt/a/c"
    assert checkpoint_root(Path("runs/a"), "else") == str(tmp_path / "else")


def test_a_run_keeps_its_identity_and_no_other_has_it(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
    assert run_identity(tmp_path / "a") == run_identity(tmp_path / "a")
    assert run_identity(tmp_path / "a") != run_identity(tmp_path / "b")
