"""Each wrong recipe of `tests/golden/recipes` ends with what, where and remedy, compared whole."""

import json
import socket

import pytest

from engine.job.fit import local_gpus
from tests.conftest import GOLDEN

FOLDER = GOLDEN / "recipes"
AT_START = sorted(p.stem for p in FOLDER.glob("start_*.toml"))
"""Faults that only a start of training finds."""

LOADED = sorted(p.stem for p in FOLDER.glob("*.toml") if p.stem not in AT_START)
NOT_THERE = {
    "missing_file": "no_such_recipe.toml",
    "misspelt_file": "tpyo_key.toml",
    "folder": ".",
    "missing_folder": "recipez/tiny.toml",
    "not_text": "not_text.bin",
}
"""Wrong names; the golden file shows the message."""


@pytest.fixture(autouse=True)
def _inside(monkeypatch):
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("COLUMNS", "80")


def test_there_are_more_than_thirty_of_them():
    assert len(LOADED) + len(NOT_THERE) + len(AT_START) >= 40


@pytest.mark.parametrize("name", LOADED)
def test_a_wrong_recipe(msctl, golden, name):
    ended = msctl("train", f"{name}.toml", "--dry-run")
    assert (ended.code, ended.out) == (3, "")
    assert "Traceback" not in ended.err
    golden(f"recipes/{name}.txt", ended.err)


@pytest.mark.parametrize("name", LOADED)
def test_the_same_as_json(msctl, name):
    ended = msctl("train", f"{name}.toml", "--dry-run", "--json")
    error = json.loads(ended.out)["error"]
    assert ended.code == error["exit"] == 3
    for problem in error["problems"]:
        assert problem["what"]
        assert problem["remedy"]


@pytest.mark.parametrize("name", NOT_THERE)
def test_a_wrong_name(msctl, golden, name):
    ended = msctl("train", NOT_THERE[name], "--dry-run")
    assert (ended.code, ended.out) == (3, "")
    golden(f"recipes/{name}.txt", ended.err)


@pytest.mark.multi
@pytest.mark.parametrize("name", AT_START)
def test_a_fault_that_only_a_start_finds(msctl, golden, tmp_path, name):
    if name == "start_no_gpu" and local_gpus():
        pytest.skip("this machine has a GPU")
    arguments = ["train", f"{name}.toml", "--runs", str(tmp_path), "-q"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if name == "start_port_taken":
            arguments += ["--set", f"train.port={port}"]
        ended = msctl(*arguments)
    assert ended.code in (3, 5), ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err
    golden(f"recipes/{name}.txt", ended.err.replace(str(port), "PORT"))
