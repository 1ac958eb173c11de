import json
import logging

import pytest

from msctl.flags import Flags, complete_recipe, complete_run

pytestmark = pytest.mark.usefixtures("sample")


@pytest.mark.parametrize(
    "arguments",
    [["--json", "ckpt", "list", "r"], ["ckpt", "--json", "list", "r"],
     ["ckpt", "list", "--json", "r"], ["ckpt", "list", "r", "--json"]],
)  # fmt: skip
def test_json_is_accepted_everywhere(msctl, arguments):
    assert json.loads(msctl(*arguments).out) == ["r", 0]


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ([], logging.WARNING),
        (["-v"], logging.INFO),
        (["-vv"], logging.DEBUG),
        (["-q"], logging.ERROR),
    ],
)
def test_the_log_follows_the_flags(msctl, arguments, level):
    msctl("ckpt", "list", "r", *arguments)
    assert logging.getLogger().level == level


def test_verbosity_adds_up(msctl):
    assert json.loads(msctl("-v", "--json", "ckpt", "list", "r", "-v").out) == ["r", 2]


def test_quiet_leaves_the_result(msctl):
    ended = msctl("-q", "plan")
    assert ended.err == ""
    assert "8x8" in ended.out


def test_set_is_repeatable(msctl):
    assert msctl("plan", "--set", "a=1", "--set", "b=2").code == 0


def test_help_shows_own_and_common_options(msctl):
    text = msctl("plan", "-h").out
    for option in ("--width", "--set", "--json", "--quiet", "--verbose", "msctl plan well"):
        assert option in text


def test_either_side_counts():
    before, after = Flags(json=True, verbose=1), Flags(quiet=True, verbose=1)
    assert before.merged(after) == Flags(json=True, quiet=True, verbose=2)


def test_completers_list_files(tmp_path):
    (tmp_path / "tiny.toml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs").mkdir()
    assert complete_recipe(f"{tmp_path}/") == [f"{tmp_path}/runs/", f"{tmp_path}/tiny.toml"]
    assert complete_recipe(f"{tmp_path}/ti") == [f"{tmp_path}/tiny.toml"]
    assert complete_run(f"{tmp_path}/") == [f"{tmp_path}/runs/"]
    assert complete_run(f"{tmp_path}/absent/x") == []
