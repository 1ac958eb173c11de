"""Turn the values of a file into nouns key by key, so that every wrong key is reported.

msgspec checks each value against the declared type of its field; this file walks the sections,
collects what it says, words it for a person and suggests what was probably meant.
"""

import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from engine.spec.base import Noun
from engine.spec.problem import Problem
from engine.spec.toml import nearest, show_value

_SHOWN = 60
N = TypeVar("N", bound=Noun)


def convert_section(
    noun: type[N], table: Any, prefix: str = "", *, file: str = "a recipe"
) -> tuple[N, list[Problem]]:
    """A noun made of a table, and every problem; `prefix` is the section's name (empty: the file).

    `file` says what the whole file is.

    With problems the noun holds stand-ins: it serves to check the other keys, not to run.
    """
    problems = []
    if not isinstance(table, Mapping):
        what = f"{prefix} = {_brief(table)} is not a section"
        remedy = f"write the keys of {prefix} below a line [{prefix}]"
        problems.append(Problem(keys=(prefix,), what=what, remedy=remedy))
        table = None
    fields = msgspec.structs.fields(noun)
    values: dict[str, Any] = {}
    meant = set()
    for key in table or ():
        if key not in noun.__struct_fields__:
            close = nearest(key, list(noun.__struct_fields__))
            meant.add(close)
            problems.append(_unknown(key, close, noun.__struct_fields__, prefix, file))
    for field in fields:
        key = f"{prefix}.{field.name}" if prefix else field.name
        inner = noun_of(field.type)
        if table is not None and field.name in table and inner is not None:
            values[field.name], found = convert_section(inner, table[field.name], key)
            problems += found
        elif table is not None and field.name in table:
            try:
                values[field.name] = _convert(table[field.name], field.type)
            except ValueError:
                problems.append(_wrong(key, table[field.name], field.type))
        elif field.required and table is not None and field.name not in meant:
            problems.append(_missing(key, field.type, inner))
        if field.required and field.name not in values:
            values[field.name] = _stand_in(field.type)
    return noun(**values), problems


def _convert(value: Any, wanted: Any) -> Any:
    """A value as its declared type; ValueError if it does not fit. Infinite numbers never fit."""
    if not _finite(value):
        raise ValueError("not a finite number")
    try:
        return msgspec.convert(value, wanted)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _stand_in(declared: Any) -> Any:
    """Any legal value of a required field."""
    inner = noun_of(declared)
    if inner is not None:
        fields = [f for f in msgspec.structs.fields(inner) if f.required]
        return inner(**{f.name: _stand_in(f.type) for f in fields})
    candidates: tuple[Any, ...] = (1, "x", {})
    for value in candidates:
        try:
            return _convert(value, declared)
        except ValueError:
            continue
    raise AssertionError(f"no stand-in for a required field of type {declared}")


def noun_of(declared: Any) -> type[Noun] | None:
    """The noun that a field holds, if it holds one (`ClusterSpec | None` counts)."""
    plain = (
        typing.get_args(declared)[0]
        if typing.get_origin(declared) is typing.Annotated
        else declared
    )
    for option in (plain, *typing.get_args(plain)):
        if isinstance(option, type) and issubclass(option, Noun):
            return option
    return None


def declared_at(noun: type[Noun], parts: Sequence[str]) -> Any:
    """The declared type of a dotted key, None if there is no such key."""
    declared: Any = noun
    for part in parts:
        inner = noun_of(declared) if declared is not noun else noun
        if inner is None:
            info = inspect.type_info(declared)
            while isinstance(info, inspect.Metadata):
                info = info.type
            return float if isinstance(info, inspect.DictType) and part == parts[-1] else None
        types = {f.name: f.type for f in msgspec.structs.fields(inner)}
        if part not in types:
            return None
        declared = types[part]
    return declared


def all_keys(noun: type[Noun], prefix: str = "") -> list[str]:
    """Every dotted key below a noun, in the order of declaration."""
    keys = []
    for field in msgspec.structs.fields(noun):
        inner = noun_of(field.type)
        keys += all_keys(inner, f"{prefix}{field.name}.") if inner else [prefix + field.name]
    return keys


def takes_text(declared: Any) -> bool:
    """Whether a field holds free text."""
    info = inspect.type_info(declared)
    while isinstance(info, inspect.Metadata):
        info = info.type
    return isinstance(info, inspect.StrType)


def takes_texts(declared: Any) -> bool:
    """Whether a field holds a list of texts."""
    return rule_of(declared) == "a list of texts"


def rule_of(declared: Any) -> str:
    """What a field accepts, in words: `a whole number of at least 1`."""
    return _words(inspect.type_info(declared))


def _words(info: Any) -> str:
    if isinstance(info, inspect.Metadata):
        return (info.extra or {}).get("rule") or _words(info.type)
    if isinstance(info, inspect.IntType | inspect.FloatType):
        noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        if info.ge is not None and info.le is not None:
            return f"{noun} from {info.ge:g} to {info.le:g}"
        if info.ge is not None:
            return f"{noun} of at least {info.ge:g}"
        return noun if info.gt is None else f"{noun} above {info.gt:g}"
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(show_value(v) for v in info.values)
    if isinstance(info, inspect.UnionType):
        return " or ".join(_words(t) for t in info.types)
    if isinstance(info, inspect.VarTupleType):
        return f"a list of {_words(info.item_type).removeprefix('a ')}s"
    if isinstance(info, inspect.DictType):
        return f"a table, each value {_words(info.value_type)}"
    if isinstance(info, inspect.StrType):
        return "text" if info.pattern is None else f"text that matches {info.pattern}"
    return "true or false" if isinstance(info, inspect.BoolType) else str(info)


def _unknown(
    key: str, close: str | None, known: tuple[str, ...], prefix: str, file: str
) -> Problem:
    full = f"{prefix}.{key}" if prefix else key
    place = f"[{prefix}]" if prefix else file
    listed = ", ".join(known)
    involved = (full, f"{prefix}.{close}" if prefix else close) if close else (full,)
    return Problem(
        keys=involved,
        what=f"{_brief(full, quote=False)} is not a key of {place}",
        remedy=f"did you mean {close}?" if close else f"use one of {listed}, or delete the line",
    )


def _missing(key: str, declared: Any, inner: type[Noun] | None) -> Problem:
    section, _, name = key.rpartition(".")
    if inner is not None:
        remedy = f"add a section [{key}]"
    else:
        place = f"to [{section}]" if section else "at the top"
        remedy = f"add {name} = ... {place}: {rule_of(declared)}"
    if section.partition(".")[0] in ("model", "cluster"):
        remedy += ", or start from a preset"
    return Problem(keys=(key,), what=f"{key} is missing", remedy=remedy)


def _wrong(key: str, value: Any, declared: Any) -> Problem:
    rule = rule_of(declared)
    return Problem(
        keys=(key,),
        what=f"{key} = {_brief(value)} is not {rule}",
        remedy=_remedy(key, value, declared) or f"set {key} to {rule}",
    )


def _remedy(key: str, value: Any, declared: Any) -> str | None:
    """What was probably meant: a number in quotes, a float for an integer, a misspelt word."""
    name = key.rpartition(".")[2]
    info = inspect.type_info(declared)
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(value, float) and value.is_integer() and isinstance(info, inspect.IntType):
        return f"write {name} = {int(value)}"
    if isinstance(value, str):
        if isinstance(info, inspect.LiteralType):
            close = nearest(value, [v for v in info.values if isinstance(v, str)])
            return f"did you mean {show_value(close)}?" if close else None
        if isinstance(info, inspect.VarTupleType):
            return f"write {name} = [{_brief(value)}]"
        try:
            meant = msgspec.convert(value.strip().lower(), declared, strict=False)
        except msgspec.ValidationError:
            return None
        return f"write {name} = {show_value(meant)}, without quotes"
    return None


def _finite(value: Any) -> bool:
    """No float in a value is infinite or not a number."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_finite(v) for v in value.values())
    return all(_finite(v) for v in value) if isinstance(value, list | tuple) else True


def _brief(value: Any, *, quote: bool = True) -> str:
    """A value for a message: as TOML, cut to one line."""
    text = show_value(value) if quote else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
