import json

import pytest

from msctl import __version__
from msctl.app import COMMANDS, EPILOG, ExitCode
from tests.msctl.sample import KINDS

pytestmark = pytest.mark.usefixtures("sample")


@pytest.mark.parametrize(
    ("how", "code"),
    [("well", 0), ("bug", 1), ("RecipeError", 3), ("LayoutError", 3), ("TraceError", 3),
     ("CheckpointError", 3), ("bad", 4), ("MissingError", 5), ("RunFailed", 6), ("interrupt", 130),
     ("late", 3), ("problems", 3), ("twice", 0)],
)  # fmt: skip
def test_each_way_of_ending_has_its_code(msctl, how, code):
    assert msctl("plan", how).code == code
    with_json = msctl("plan", how, "--json")
    assert with_json.code == (1 if how == "twice" else code)
    json.loads(with_json.out)  # exactly one document, whatever happened


@pytest.mark.parametrize("how", sorted(KINDS))
def test_an_error_says_what_and_remedy(msctl, how):
    ended = msctl("plan", how)
    assert ended.out == ""
    assert ended.err == "error: x.toml: [layout] tp = 6 \\x1b[31m\n\nhint: set tp to 8\n"


def test_an_error_as_json(msctl):
    error = json.loads(msctl("plan", "MissingError", "--json").out)["error"]
    assert (error["kind"], error["exit"], error["remedy"]) == ("MissingError", 5, "set tp to 8")


def test_every_problem_is_printed_with_its_remedy(msctl):
    ended = msctl("plan", "problems")
    assert ended.err.startswith("error: f:1: k = 0\n\nhint: r0\n\nerror: f:1: k = 1\n\nhint: r1\n")
    assert ended.err.endswith("and 5 more problems\n")
    error = json.loads(msctl("--json", "plan", "problems").out)["error"]
    assert error["kind"] == "RecipeError"
    assert len(error["problems"]) == 25


def test_a_bug_shows_its_traceback_and_where_to_report(msctl):
    ended = msctl("plan", "bug")
    assert "Traceback" in ended.err
    assert f"a bug in msctl {__version__}: ZeroDivisionError: oops" in ended.err
    assert "hint: report it" in ended.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["plna"], "Did you mean 'plan'"), (["ckpt", "lst"], "Did you mean 'list'"),
     (["plan", "--widht", "3"], "No such option: --widht"),
     (["plan", "--width", "x"], "Invalid value for '--width'"),
     (["ckpt", "list"], "Missing argument")],
)  # fmt: skip
def test_a_wrong_command_line(msctl, arguments, part):
    ended = msctl(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert part in ended.err
    assert "--help` " in f"{ended.err.strip()} "
    assert json.loads(msctl(*arguments, "--json").out)["error"]["kind"] == "UsageError"


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["--json"]])
def test_bare_and_help_show_all_commands(msctl, arguments):
    ended = msctl(*arguments)
    assert (ended.code, ended.err) == (0, "")
    assert "Work on checkpoints" in ended.out
    assert "130 interrupted" in ended.out


@pytest.mark.parametrize("arguments", [["ckpt"], ["ckpt", "-h"]])
def test_a_bare_group_shows_its_help(msctl, arguments):
    ended = msctl(*arguments)
    assert (ended.code, ended.err) == (0, "")
    assert "List a run's checkpoints" in ended.out


def test_version(msctl):
    assert msctl("--version") == (0, f"msctl {__version__}\n", "")


def test_completion_script(msctl, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "msctl" in msctl("--show-completion", "bash").out


def test_completion_lists_commands_and_options(msctl, monkeypatch):
    monkeypatch.setenv("_MSCTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "msctl ckpt ")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "list" in msctl().out


def test_the_epilog_names_every_code():
    for code in ExitCode:
        assert f"{code.value} " in EPILOG


def test_commands_are_those_of_the_house():
    from msctl import app

    assert COMMANDS is not app.COMMANDS  # the fixture is at work
    assert [c.name for c in COMMANDS] == ["plan", "selfcheck", "train", "ckpt", "diagnose"]
