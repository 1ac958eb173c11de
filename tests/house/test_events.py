"""Rule 8: events that are written are in the schema, and those in the schema are written."""

import ast

from engine.events.schema import NAMES
from engine.schedule.action import Kind
from tests.house.source import ROOT, files, name, nodes

SCHEMA = ROOT / "engine" / "events" / "schema.py"
WRITERS = {"span": 0, "instant": 0, "value": 0, "add": 1}
"""Methods of the event writer -> position of the event's name."""


def _texts(path) -> set[str]:
    return {
        n.value for n in nodes(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


def test_every_name_written_is_in_the_schema():
    wrong = []
    for path in files():
        for node in nodes(path):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value)
            position = WRITERS.get(node.func.attr)
            if position is None or owner.rpartition(".")[2].lstrip("_") not in ("events", "writer"):
                continue
            given = node.args[position] if len(node.args) > position else None
            if isinstance(given, ast.Constant) and given.value not in NAMES:
                wrong.append(f"{name(path)}:{node.lineno}: {given.value!r}")
    assert not wrong, "\n".join(wrong)


def test_every_name_of_the_schema_is_written_somewhere():
    written = {kind.name.lower() for kind in Kind}  # actions are written under their kind's name
    for path in files():
        if path != SCHEMA:
            written |= _texts(path)
    assert not set(NAMES) - written


def test_every_name_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    assert not [n for n in NAMES if f"| `{n}` |" not in page]
