"""Rule 3: 300 lines of a file are an alarm, 500 a wall; for functions 40 and 60."""

import ast
import re
import warnings

from tests.house.source import files, functions, name

FILE_ALARM, FILE_WALL = 300, 500
FUNCTION_ALARM, FUNCTION_WALL = 40, 60


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and without functions inside it."""
    first = function.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    documented = (first.end_lineno or 0) - first.lineno + 1 if text else 0
    inside = sum(
        (node.end_lineno or 0) - node.lineno + 1
        for node in function.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return (function.end_lineno or 0) - function.lineno + 1 - documented - inside


def test_files_and_functions_are_below_the_wall():
    alarms, walls = [], []
    for path in files():
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > FILE_ALARM:
            (walls if length > FILE_WALL else alarms).append(f"{name(path)}: {length} lines")
        for function in functions(path):
            if _lines(function) > FUNCTION_ALARM:
                where = f"{name(path)}:{function.lineno}: {function.name}: {_lines(function)} lines"
                (walls if _lines(function) > FUNCTION_WALL else alarms).append(where)
    if alarms:
        warnings.warn("over the alarm:\n  " + "\n  ".join(alarms), stacklevel=1)
    assert not walls, "\n".join(walls)


def test_no_lint_rule_is_switched_off_without_a_reason():
    bare = re.compile(r"#\s*noqa(?::\s*[A-Z0-9, ]+)?\s*$|#\s*type:\s*ignore\s*$")
    wrong = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if bare.search(line)
    ]
    assert not wrong, "\n".join(wrong)
