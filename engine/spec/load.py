"""From a file and `--set` to a `Recipe` or `ClusterSpec`, with every fault reported at once.

Precedence in one sentence: defaults, then presets, then the file, then `--set`. `dump_recipe`
writes the resolved form, every default spelled out; loading that gives the same object.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.errors import RecipeError
from engine.spec.check import check
from engine.spec.check_run import check_cluster
from engine.spec.cluster import ClusterSpec
from engine.spec.convert import all_keys, convert_section, declared_at, takes_text, takes_texts
from engine.spec.presets import CLUSTERS, MODELS
from engine.spec.problem import Problem, RecipeProblems
from engine.spec.recipe import Recipe
from engine.spec.toml import Document, dump_toml, nearest, parse_toml, read_toml, show_value

_SET = "--set"


class Override(NamedTuple):
    """One `--set`: the dotted key as its parts, the value, and the text that was typed for it."""

    parts: tuple[str, ...]
    value: Any
    text: str


def load_recipe(path: str | Path, sets: Sequence[str] = ()) -> Recipe:
    """The recipe of a file with `--set KEY=VALUE` texts applied.

    Raises RecipeProblems (a RecipeError) with every wrong key and every contradiction.
    """
    return resolve(read_toml(Path(path)), sets)


def recipe_of(data: Mapping[str, Any], *, origin: str, sets: Sequence[str] = ()) -> Recipe:
    """The recipe of values that come from elsewhere, such as a manifest; `origin` names them."""
    return resolve(Document(origin, dict(data), {}), sets)


def resolve(document: Document, sets: Sequence[str] = ()) -> Recipe:
    """Presets, conversion and cross-checks for the values of a document."""
    data = copy.deepcopy(document.data)
    problems, overridden = _apply(data, [parse_set(text) for text in sets])
    for section, presets in (("model", MODELS), ("cluster", _cluster_presets())):
        if isinstance(data.get(section), dict):
            problems += _expand(data[section], presets, section)
    recipe, wrong = convert_section(Recipe, data)
    problems += wrong
    faulty = frozenset(key for problem in problems for key in problem.keys)
    problems += check(recipe, given=frozenset(_paths(data)), wrong=faulty)
    _report(problems, document, overridden)
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as TOML with every default written out."""
    return dump_toml(msgspec.to_builtins(recipe))


def load_cluster(name_or_path: str | Path) -> ClusterSpec:
    """A cluster preset by name, or a TOML file with the keys of [cluster]; else RecipeError."""
    name = str(name_or_path)
    if name in CLUSTERS:
        return CLUSTERS[name]
    if not name.endswith(".toml") and not Path(name).exists():
        close = nearest(name, list(CLUSTERS))
        raise RecipeError(
            f"there is no cluster {name!r}, neither a preset nor a file",
            remedy=f"did you mean {close}?" if close
            else f"use one of {', '.join(CLUSTERS)}, or a TOML file",
        )  # fmt: skip
    document = read_toml(Path(name))
    data = copy.deepcopy(document.data)
    problems = _expand(data, _cluster_presets(), "")
    cluster, wrong = convert_section(ClusterSpec, data, file="a cluster file")
    problems += wrong or list(check_cluster(cluster))
    _report(problems, document, frozenset())
    return cluster


def dump_cluster(cluster: ClusterSpec) -> str:
    """A cluster as a TOML file that `load_cluster` reads."""
    return dump_toml(msgspec.to_builtins(cluster))


def parse_set(text: str) -> Override:
    """`layout.tp=4` as key and value; a value that is not TOML is taken as text."""
    key, equals, typed = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not equals or not all(parts):
        raise RecipeError(
            f"--set {text}: not of the form KEY=VALUE",
            remedy="write a dotted key and its value, e.g. --set layout.tp=4",
        )
    try:
        value = parse_toml(f"value = {typed}", _SET)
    except RecipeError:
        return Override(parts, typed.strip(), typed.strip())
    return Override(parts, value["value"] if len(value) == 1 else typed.strip(), typed.strip())


def _apply(
    data: dict[str, Any], overrides: Sequence[Override]
) -> tuple[list[Problem], frozenset[str]]:
    """Write overrides into the values; what is wrong with their keys, and the keys written."""
    problems = []
    done = set()
    for override in overrides:
        key = ".".join(override.parts)
        declared = declared_at(Recipe, override.parts)
        is_preset = override.parts in (("model", "preset"), ("cluster", "preset"))
        done.add(key)
        if declared is None and not is_preset:
            problems.append(_no_such_key(key))
            continue
        value = override.value
        if is_preset or takes_text(declared):
            value = value if isinstance(value, str) else override.text
        elif takes_texts(declared) and isinstance(value, str):
            value = [value]
        table: Any = data
        for part in override.parts[:-1]:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):  # else the file has a value where a section belongs
            table[override.parts[-1]] = value
    return problems, frozenset(done)


def _no_such_key(key: str) -> Problem:
    """A --set that names no key; the last part often suffices to know what was meant."""
    known = all_keys(Recipe)
    close = nearest(key, known) or next((k for k in known if k.endswith(f".{key}")), None)
    return Problem(
        keys=(key,),
        what=f"{key} is not a key of a recipe",
        remedy=f"did you mean {close}?" if close else "see docs/reference/recipe.md for all keys",
    )


def _expand(table: dict[str, Any], presets: Mapping[str, Any], section: str) -> list[Problem]:
    """Fill in what the table's `preset` says and the table does not."""
    if "preset" not in table:
        return []
    name = table.pop("preset")
    known = isinstance(name, str) and name in presets
    _merge(table, presets[name if known else next(iter(presets))])
    if known:
        return []
    prefix = f"{section}." if section else ""
    close = nearest(name, list(presets)) if isinstance(name, str) else None
    problem = Problem(
        keys=(f"{prefix}preset", *([section] if section else table)),
        what=f"{prefix}preset = {show_value(name)} is not a preset",
        remedy=f"did you mean {close}?" if close else f"use one of {', '.join(presets)}",
    )
    return [problem]


def _merge(table: dict[str, Any], under: Mapping[str, Any]) -> None:
    """Values of `under` where the table has none, section by section."""
    for key, value in under.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table.setdefault(key, copy.deepcopy(value))


def _cluster_presets() -> dict[str, Any]:
    return {name: msgspec.to_builtins(cluster) for name, cluster in CLUSTERS.items()}


def _paths(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key that has a value."""
    found = []
    for key, value in data.items():
        found.append(prefix + key)
        if isinstance(value, Mapping):
            found += _paths(value, f"{prefix}{key}.")
    return found


def _report(problems: list[Problem], document: Document, overridden: frozenset[str]) -> None:
    """Raise all problems, each with the place of its first key."""
    placed = []
    for problem in problems:
        key = problem.keys[0]
        where = _SET if key in overridden else document.where(key)
        placed.append(msgspec.structs.replace(problem, where=where))
    if placed:
        line = {id(p): document.lines.get(p.keys[0], 0) if p.where != _SET else 0 for p in placed}
        raise RecipeProblems(tuple(sorted(placed, key=lambda p: line[id(p)])))
