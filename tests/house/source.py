"""The product's source as syntax trees, for the rules of the house."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

ROWS = {
    "msctl": 10, "job": 9, "train": 8, "parallel": 7, "model": 6, "optim": 6, "data": 6, "ckpt": 6,
    "health": 6, "ops": 5, "comm": 5, "plan": 4, "diagnose": 4, "device": 4, "schedule": 3.5,
    "events": 3, "spec": 2, "units": 1, "log": 1, "processes": 1, "errors": 0,
}  # fmt: skip
"""Room -> row; a room imports only rooms of lower rows."""


class Import(NamedTuple):
    """One imported module, where, and whether inside a function."""

    module: str
    line: int


@functools.cache
def files() -> tuple[Path, ...]:
    """Every Python file of the product."""
    found = [p for top in ("engine", "msctl") for p in (ROOT / top).rglob("*.py")]
    return tuple(sorted(found))


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree: a dozen rules look at each."""
    return tuple(ast.walk(tree(path)))


def name(path: Path) -> str:
    """A path as written in messages."""
    return path.relative_to(ROOT).as_posix()


def room(path: Path) -> str:
    """The room a file belongs to; the package file of `engine` has none."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "msctl":
        return "msctl"
    return parts[1].removesuffix(".py")


def room_of_module(module: str) -> str | None:
    """The room an imported module belongs to, None if it is not ours."""
    parts = module.split(".")
    if parts[0] == "msctl":
        return "msctl"
    return parts[1] if parts[0] == "engine" and len(parts) > 1 else None


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import statement of a file, also inside functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", node.lineno)
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
