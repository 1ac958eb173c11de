"""Reference pages made from code: the command line, the recipe, the events."""

import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import msgspec
import typer
from typer.models import ArgumentInfo, OptionInfo

from engine.events.schema import NAMES, VERSION, Event
from engine.spec.base import Noun
from engine.spec.convert import noun_of, rule_of
from engine.spec.presets import CLUSTERS, MODELS, model_preset
from engine.spec.recipe import Recipe
from engine.spec.toml import show_value
from msctl.app import COMMANDS

_MADE = "<!-- Written by `make docs` from {source}; edit that, not this page. -->\n"


def recipe_page() -> str:
    """Every section and key of a recipe, with type, default and meaning."""
    lines = [
        "# Recipe",
        "",
        _MADE.format(source="`engine/spec/`"),
        *_prose(
            "A recipe is one TOML file. Values come from defaults, then from a section's `preset`, "
            "then from the file, then from `--set KEY=VALUE`, which is repeatable and takes any "
            "key below by its dotted name. Unknown keys are refused. "
            "`recipes/recipe.schema.json` is the JSON Schema for editors."
        ),
        "",
        "## At the top",
        "",
        *_keys(Recipe, ""),
    ]
    for field in msgspec.structs.fields(Recipe):
        inner = noun_of(field.type)
        if inner is not None:
            lines += ["", f"## [{field.name}]", "", f"{_first(inner)} {_required(field)}", ""]
            lines += _keys(inner, field.name)
    lines += [
        "",
        "## Presets",
        "",
        *_prose(
            '`preset = "NAME"` in `[model]` or `[cluster]` fills in the keys that the section does '
            "not give."
        ),
        "",
        "| model | layers | hidden | heads | kv_heads | ffn | vocab | seq |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in MODELS:
        m = model_preset(name)
        sizes = (m.layers, m.hidden, m.heads, m.kv_heads, m.ffn, m.vocab, m.seq)
        lines.append(f"| `{name}` | " + " | ".join(str(size) for size in sizes) + " |")
    lines += ["", "| cluster | device | between devices [B/s] | between nodes [B/s] |",
              "| --- | --- | --- | --- |"]  # fmt: skip
    for name, c in CLUSTERS.items():
        rates = f"{show_value(c.intra.bytes_per_s)} | {show_value(c.inter.bytes_per_s)}"
        lines.append(f"| `{name}` | {c.gpus_per_node} x {c.device.name} | {rates} |")
    return "\n".join(lines) + "\n"


def events_page() -> str:
    """The fields of an event and every name it may have."""
    lines = [
        "# Events",
        "",
        _MADE.format(source="`engine/events/schema.py`"),
        *_prose(
            f"Schema version {VERSION}. A rank appends one JSON object a line to "
            "`events/rank-NNNNN.jsonl` of its run; the planner's simulated runs have the same "
            "form. A last line without an end is what a crash leaves, and readers skip it; any "
            "other line that is no event is an error. "
            "A file of more than half of `monitor.events_mib` becomes `rank-NNNNN.jsonl.1`, in the "
            "place of an older one, and a new one begins; both are read. With "
            "`monitor.events_every` most steps are summed up: the `step` has the attribute "
            "`summed`, and each span in it stands for several (`times`) and is as long as all of "
            "them, less what ran inside them; where it lies within the step means nothing."
        ),
        "",
        "| field | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for field in msgspec.structs.fields(Event):
        rule = (
            "a table of texts, numbers, booleans" if field.name == "attrs" else rule_of(field.type)
        )
        lines.append(f"| `{field.name}` | {rule} | {_default(field)} | {_meaning(field.type)} |")
    lines += ["", "| name | kind | required attributes | meaning |", "| --- | --- | --- | --- |"]
    for name, entry in NAMES.items():
        attrs = ", ".join(f"`{a}`" for a in entry.attrs) or "none"
        lines.append(f"| `{name}` | {entry.kind} | {attrs} | {entry.meaning} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Command line",
        "",
        _MADE.format(source="`msctl/`"),
        *_prose(
            "Every command takes `--json`, `-q`/`--quiet` and `-v`/`--verbose`, before or after "
            "its name, and `-h`/`--help`. The result goes to stdout, everything else to stderr; "
            "in a pipe, tables are tab-separated. Exit codes have [their own page](exit-codes.md)."
        ),
    ]
    for path, line, function in commands():
        lines += ["", f"## msctl {path}", "", *(_help(function) or [line])]
        arguments, options = _parameters(function)
        if arguments:
            lines += ["", "| argument | default | meaning |", "| --- | --- | --- |", *arguments]
        if options:
            lines += ["", "| option | default | meaning |", "| --- | --- | --- |", *options]
    return "\n".join(lines) + "\n"


def commands() -> Iterator[tuple[str, str, Callable[..., None]]]:
    """Path, first line and function of every command and sub-command."""
    for entry in COMMANDS:
        found = getattr(import_module(entry.module), entry.attribute)
        if not isinstance(found, typer.Typer):
            yield entry.name, entry.line, found
            continue
        root = found.registered_callback
        if root is not None and root.callback is not None and any(_parameters(root.callback)):
            yield entry.name, entry.line, root.callback  # it does something by itself too
        for info in found.registered_commands:
            function = info.callback
            assert function is not None, f"a sub-command of {entry.name} without a function"
            name = info.name or function.__name__.rstrip("_").replace("_", "-")
            yield f"{entry.name} {name}", entry.line, function


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_on_hyphens=False, break_long_words=False)


def _help(function: Callable[..., None]) -> list[str]:
    return inspect.cleandoc(function.__doc__ or "").splitlines()


def _parameters(function: Callable[..., None]) -> tuple[list[str], list[str]]:
    """Table rows of a command's own arguments and options."""
    arguments, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("ctx", "json", "quiet", "verbose"):
            continue
        infos = [a for a in typing.get_args(parameter.annotation)
                 if isinstance(a, ArgumentInfo | OptionInfo)]  # fmt: skip
        info = infos[0] if infos else OptionInfo()
        default = _cell(parameter.default)
        if isinstance(info, ArgumentInfo):
            name = info.metavar or parameter.name.upper()
            arguments.append(f"| `{name}` | {default} | {info.help or ''} |")
        else:
            options.append(f"| `{_option(parameter.name, info)}` | {default} | {info.help or ''} |")
    return arguments, options


def _option(name: str, info: OptionInfo) -> str:
    """How an option is written."""
    declared = [info.default] if isinstance(info.default, str) else []
    declared += [d for d in info.param_decls or () if d not in declared]
    shown = ", ".join(declared) or f"--{name.replace('_', '-')}"
    return f"{shown} {info.metavar}" if info.metavar else shown


def _cell(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default is None or default is False or default == "":
        return ""
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _keys(noun: type[Noun], prefix: str) -> list[str]:
    """A table of a section's own keys, then the tables of its sub-sections."""
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    below: list[str] = []
    for field in msgspec.structs.fields(noun):
        inner = noun_of(field.type)
        if inner is None:
            row = f"{rule_of(field.type)} | {_default(field)} | {_meaning(field.type)}"
            lines.append(f"| `{field.name}` | {row} |")
        elif prefix:
            below += ["", f"### [{prefix}.{field.name}]", "", f"{_first(inner)}", ""]
            below += _keys(inner, f"{prefix}.{field.name}")
    return lines + below


def _first(noun: type[Noun]) -> str:
    return inspect.cleandoc(noun.__doc__ or "").splitlines()[0]


def _required(field: msgspec.structs.FieldInfo) -> str:
    return "Required." if field.required else "Optional."


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{show_value(field.default_factory())}`"
    return f"`{show_value(field.default)}`"


def _meaning(declared: Any) -> str:
    texts = [a.description for a in typing.get_args(declared) if isinstance(a, msgspec.Meta)]
    return next((text for text in reversed(texts) if text), "").replace("|", "\\|")
