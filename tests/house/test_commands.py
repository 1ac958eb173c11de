"""Rule 4: every command has a first line and an example; every example parses and is documented."""

import inspect
import re
import shlex
from importlib import import_module

import pytest
import typer

from msctl.app import COMMANDS, build_app
from tests.house.source import ROOT
from tools.pages import commands

FOUND = list(commands())
EXAMPLE = re.compile(r"^- `(msctl [^`]+)`", re.MULTILINE)


def examples(function) -> list[str]:
    """The back-quoted command lines of a command's help."""
    return EXAMPLE.findall(inspect.cleandoc(function.__doc__ or ""))


def parse(line: str) -> None:
    """Parse a command line as typer would, without running it; raises if it is wrong."""
    words = shlex.split(line)[1:]
    command = typer.main.get_command(build_app(words))
    context = command.make_context("msctl", list(words))
    while hasattr(command, "resolve_command"):
        first = getattr(context, "_protected_args", None) or getattr(context, "protected_args", [])
        rest = [*first, *context.args]
        if not rest:  # a group that does something by itself
            return
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def markdown() -> list[tuple[str, str]]:
    """Every page for users: path and text."""
    pages = [
        *(ROOT / "docs" / "tutorials").rglob("*.md"),
        *(ROOT / "docs" / "how-to").rglob("*.md"),
    ]
    return [(p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8")) for p in sorted(pages)]


@pytest.mark.parametrize(("path", "line", "function"), FOUND, ids=[f[0] for f in FOUND])
def test_a_command_has_a_first_line_and_an_example(path, line, function):
    first = inspect.cleandoc(function.__doc__ or "").splitlines()[0]
    assert first[0].isupper()
    assert examples(function), f"msctl {path} shows no example in its help"


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda e: e.name)
def test_the_list_of_commands_says_what_their_help_says(entry):
    found = getattr(import_module(entry.module), entry.attribute)
    text = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    if isinstance(text, str):
        assert inspect.cleandoc(text).splitlines()[0].rstrip(".") == entry.line


@pytest.mark.parametrize(
    "line", [line for _, _, function in FOUND for line in examples(function)] or ["msctl --help"]
)
def test_every_example_parses(line):
    if line != "msctl --help":
        parse(line)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda e: e.name)
def test_every_command_is_in_a_page_for_users(entry):
    pages = markdown()
    if not pages:
        pytest.skip("there are no tutorials and how-tos yet")
    assert any(f"msctl {entry.name}" in text for _, text in pages)


def test_a_wrong_example_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        parse("msctl plan --modle x")
