"""Which checkpoint a run continues from."""

import shutil
from pathlib import Path

import pytest

from engine.ckpt.catalog import catalog
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


@pytest.mark.slow
@pytest.mark.parametrize("two_stage", [True, False])
def test_going_back_to_a_step_begins_a_branch_that_wins(tmp_path: Path, two_stage, monkeypatch):
    monkeypatch.setenv("MSCTL_SPOOL", str(tmp_path / "shm"))
    kept = {"every": 100, "keep": 0, "two_stage": two_stage}  # saved at each end, all durable
    made = recipe(checkpoint=kept, train={"steps": 20})
    for _ in range(3):
        run(tmp_path / "r", made, steps=2)
    other = recipe(checkpoint=kept, train={"steps": 20}, optimizer={"lr": 1e-4})
    run(tmp_path / "r", other, steps=2, resume="2")
    rows = run(tmp_path / "r", other, steps=1)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5]  # and not 7, after the 6 left behind
    infos = catalog(tmp_path / "r" / "ckpt")
    assert [(info.name, info.state) for info in infos] == [
        ("step-00000002", "committed"), ("step-00000004", "abandoned"),
        ("step-00000004.2", "committed"), ("step-00000005", "committed"),
        ("step-00000006", "abandoned"),
    ]  # fmt: skip
    # a person may change their mind: what was left can be named, and counts again from then on
    assert [row.step for row in run(tmp_path / "r", other, steps=1, resume="6")][-1] == 7
    assert checkpoint_to_resume(f"{tmp_path}/r/ckpt", "6") == f"{tmp_path}/r/ckpt/step-00000006"


def test_weights_of_a_model_that_only_has_the_same_shapes_are_refused(tmp_path: Path):
    made = recipe(checkpoint={"every": 2, "keep": 0})
    run(tmp_path / "r", made, steps=2)
    for wish in ("auto", "2"):
        root = f"{tmp_path}/r/ckpt"
        assert checkpoint_to_resume(root, wish, recipe=made)
        may = recipe(model={"dropout": 0.1})
        assert checkpoint_to_resume(root, wish, recipe=may)
        other = recipe(model={"heads": 4, "norm_eps": 0.1})
        with pytest.raises(CheckpointError, match=r"model.heads = 2 \(here 4\), model.norm_eps"):
            checkpoint_to_resume(root, wish, recipe=other)


def test_a_new_run_does_not_go_on_with_checkpoints_of_another(tmp_path: Path):
    place = str(tmp_path / "shared")
    made = recipe(checkpoint={"every": 2, "keep": 0, "path": place})
    run(tmp_path / "a", made, steps=2)
    with pytest.raises(CheckpointError, match="is of another run, a") as caught:
        run(tmp_path / "b", made, steps=2)
    assert "{run}" in caught.value.remedy
    assert [row.step for row in run(tmp_path / "b", made, steps=1, resume="2")] == [3]
    assert [row.step for row in run(tmp_path / "a", made, steps=1)][-1] == 4  # a's own go on
    again = tmp_path / "else" / "a"  # the same name elsewhere is another run
    again.parent.mkdir()
    with pytest.raises(CheckpointError, match="is of another run"):
        run(again, made, steps=1)


def test_a_place_that_cannot_be_written_is_found_before_the_first_step(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    made = recipe(checkpoint={"every": 2, "path": str(tmp_path / "file" / "ckpt")})
    with pytest.raises(CheckpointError, match="file"):
        run(tmp_path / "a", made, steps=2)
    assert not (tmp_path / "a" / "metrics.jsonl").exists()
    run(tmp_path / "b", recipe(checkpoint={"path": str(tmp_path / "new")}), steps=2)
    assert not list((tmp_path / "new").glob(".writable*"))
