"""Which checkpoint a run continues from."""

from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.train.resume import checkpoint_to_resume
from tests.engine.train.single import recipe, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    run(folder, recipe(checkpoint={"every": 2, "keep": 0}), steps=4)
    return folder


@pytest.mark.parametrize("wish", ["auto", "never"])
def test_a_new_run_starts_from_nothing(tmp_path: Path, wish):
    assert checkpoint_to_resume(tmp_path, wish) is None


def test_auto_takes_what_there_is_and_never_nothing(trained: Path):
    assert checkpoint_to_resume(trained, "auto") == trained / "ckpt"
    assert checkpoint_to_resume(trained, "never") is None


def test_a_number_takes_that_step(trained: Path):
    assert checkpoint_to_resume(trained, "2") == trained / "ckpt" / "step-00000002"


@pytest.mark.parametrize("wish", ["3", "0", "999999999"])
def test_a_step_that_is_not_there_is_refused_with_a_way_to_see_what_is(trained: Path, wish):
    with pytest.raises(CheckpointError, match=f"no committed checkpoint of step {wish}") as caught:
        checkpoint_to_resume(trained, wish)
    assert f"msctl ckpt list {trained}" in caught.value.remedy


def test_a_step_of_an_empty_run_is_refused_too(tmp_path: Path):
    with pytest.raises(CheckpointError):
        checkpoint_to_resume(tmp_path, "2")


def test_folders_without_a_marker_do_not_count(tmp_path: Path):
    (tmp_path / "ckpt" / "step-00000005").mkdir(parents=True)
    assert checkpoint_to_resume(tmp_path, "auto") is None
    with pytest.raises(CheckpointError):
        checkpoint_to_resume(tmp_path, "5")
