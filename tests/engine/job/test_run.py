"""Run folders: where a run goes, what it may continue, who holds it, how it ended."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.errors import MissingError, RecipeError
from engine.job.run import (
    RunResult,
    hold_folder,
    prepare_folder,
    read_result,
    run_folder,
    valid_resume,
    write_result,
)
from engine.spec.layout import ParallelLayout
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe
from tests.engine.train.single import recipe

MADE = recipe()


def changed(**fields: object) -> Recipe:
    return msgspec.structs.replace(MADE, **fields)


def test_a_run_goes_where_it_is_told_or_under_its_name(tmp_path: Path):
    assert run_folder(MADE, tmp_path / "here", root=tmp_path, resume="auto") == tmp_path / "here"
    assert run_folder(MADE, None, root=tmp_path, resume="auto") == tmp_path / "single"


def test_continuing_takes_the_same_folder_and_never_the_next_free_number(tmp_path: Path):
    for expected in ("single", "single-2", "single-3"):
        folder = run_folder(MADE, None, root=tmp_path, resume="never")
        assert folder == tmp_path / expected
        prepare_folder(folder, MADE)
    assert run_folder(MADE, None, root=tmp_path, resume="auto") == tmp_path / "single"


def test_never_overwrites_no_run_that_was_named(tmp_path: Path):
    prepare_folder(tmp_path / "mine", MADE)
    with pytest.raises(RecipeError, match="holds a run already"):
        run_folder(MADE, tmp_path / "mine", root=tmp_path, resume="never")
    assert run_folder(MADE, tmp_path / "other", root=tmp_path, resume="never")


def test_the_resolved_recipe_is_written_and_loads_to_the_same(tmp_path: Path):
    prepare_folder(tmp_path / "a" / "b", MADE)
    assert load_recipe(tmp_path / "a" / "b" / "recipe.toml") == MADE
    assert os.listdir(tmp_path / "a" / "b") == ["recipe.toml"]


def test_a_run_may_go_on_with_another_layout_length_and_rate(tmp_path: Path):
    prepare_folder(tmp_path, MADE)
    later = changed(
        layout=ParallelLayout(dp=2),
        train=msgspec.structs.replace(MADE.train, steps=99, precision="fp64"),
        optimizer=msgspec.structs.replace(MADE.optimizer, lr=1e-5, min_lr=0.0),
        batch=msgspec.structs.replace(MADE.batch, micro_batch=1),
        data=msgspec.structs.replace(MADE.data, cache="/elsewhere"),
    )
    prepare_folder(tmp_path, later)
    assert load_recipe(tmp_path / "recipe.toml") == later


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("model.layers = 4 (it has 2)", {"model": msgspec.structs.replace(MADE.model, layers=4)}),
        ("seed = 9 (it has 5)", {"seed": 9}),
        ("batch.global_batch = 8 (it has 4)",
         {"batch": msgspec.structs.replace(MADE.batch, global_batch=8)}),
        ("data.shuffle = False (it has True)",
         {"data": msgspec.structs.replace(MADE.data, shuffle=False)}),
        ("data.validation = 0.5",
         {"data": msgspec.structs.replace(MADE.data, validation=0.5)}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_what_weights_and_order_of_samples_mean_may_not_change(tmp_path: Path, key, fields):
    prepare_folder(tmp_path, MADE)
    with pytest.raises(RecipeError) as caught:
        prepare_folder(tmp_path, changed(**fields))
    assert key in caught.value.what
    assert str(tmp_path / "recipe.toml") in caught.value.remedy
    assert load_recipe(tmp_path / "recipe.toml") == MADE, "the folder is as it was"


def test_a_broken_recipe_in_the_folder_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text("layers =")
    with pytest.raises(RecipeError, match=r"recipe\.toml"):
        prepare_folder(tmp_path, MADE)


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path: Path):
    with hold_folder(tmp_path / "r"):
        with pytest.raises(MissingError) as caught, hold_folder(tmp_path / "r"):
            pass
        assert f"process {os.getpid()}" in caught.value.what
        with hold_folder(tmp_path / "other"):
            pass
    with hold_folder(tmp_path / "r"):
        pass


def test_where_the_file_system_knows_no_locks_a_run_is_warned_not_stopped(
    tmp_path: Path, monkeypatch, caplog
):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with hold_folder(tmp_path):
        pass
    assert "knows no locks" in caplog.text


@pytest.mark.multi
def test_a_killed_holder_gives_the_folder_back(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from engine.job.run import hold_folder\n"
        "with hold_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(MissingError, match=f"process {child.pid}"), hold_folder(tmp_path):
            pass
        child.kill()
    with hold_folder(tmp_path):
        pass


def test_a_result_is_read_back_and_a_broken_one_is_none(tmp_path: Path):
    result = RunResult(
        job="r", folder="runs/r", ended="done", steps=3, total_steps=3, tokens=9, seconds=1.5
    )
    assert read_result(tmp_path) is None
    write_result(tmp_path, result)
    assert read_result(tmp_path) == result
    for bad in (b"", b"{}", b"\xff", b"[" * 100_000, b'{"job": 1}'):
        (tmp_path / "result.json").write_bytes(bad)
        assert read_result(tmp_path) is None


@pytest.mark.parametrize(
    ("wish", "valid"),
    [("auto", True), ("never", True), ("0", True), ("100", True), ("-1", False), ("", False),
     ("Auto", False), ("1e3", False), ("12345678901", False), ("٣", False), ("1\n", False)],
)  # fmt: skip
def test_words_of_resume(wish, valid):
    assert valid_resume(wish) == valid


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_is_an_error_with_a_remedy(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(MissingError) as caught, hold_folder(tmp_path / place):
        pass
    assert "--run" in caught.value.remedy
