"""Rule 7: every error has a remedy, and its printed form is golden."""

import ast

from engine import errors
from msctl.app import COMMANDS, CommandEntry
from tests.house.source import dotted, files, name, nodes
from tests.msctl.sample import KINDS


def _raised():
    """Calls of the error kinds, each with its file."""
    for path in files():
        for node in nodes(path):
            if isinstance(node, ast.Call) and dotted(node.func) in KINDS:
                yield path, node


def test_every_error_is_given_a_remedy():
    for path, call in _raised():
        remedies = [k.value for k in call.keywords if k.arg == "remedy"]
        assert remedies, f"{name(path)}:{call.lineno}: {dotted(call.func)} without a remedy"
        text = remedies[0]
        empty = isinstance(text, ast.Constant) and not str(text.value).strip()
        assert not empty, f"{name(path)}:{call.lineno}: an empty remedy"


def test_nothing_but_the_kinds_is_raised_for_a_person():
    kinds = {v.__name__ for v in vars(errors).values() if isinstance(v, type)}
    assert set(KINDS) | {"EngineError"} == kinds


def test_there_is_one_except_for_all_errors():
    caught = [
        f"{name(path)}:{node.lineno}"
        for path in files()
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and dotted(node.type) == "EngineError"
    ]
    assert len([c for c in caught if c.startswith("msctl/app.py")]) == 1


def test_every_kind_has_a_golden_message(msctl, golden, monkeypatch):
    entry = CommandEntry("plan", "tests.msctl.sample", "plan", "Do as told")
    monkeypatch.setattr("msctl.app.COMMANDS", (entry, *COMMANDS[1:]))
    shown = []
    for kind in sorted(KINDS):
        ended = msctl("plan", kind)
        shown.append(f"{kind}: exit {ended.code}\n{ended.err}")
    golden("errors.txt", "\n".join(shown))
