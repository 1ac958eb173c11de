"""Read a TOML file that anybody may have written, and write one that loads to the same values.

Reading checks at the door: size, encoding, syntax, each with file and line. Writing covers what
recipes hold (tables, scalars, lists), since neither Python nor msgspec writes TOML.
"""

import difflib
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import RecipeError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library under its older name
    import tomli as tomllib

SIZE_LIMIT = 1 << 20
"""Bytes a recipe may have; the largest shipped one has three thousand."""

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


class Document(NamedTuple):
    """A file's values and the line of each key (`layout.tp` -> 12), for messages."""

    path: str
    data: dict[str, Any]
    lines: dict[str, int]

    def where(self, key: str) -> str:
        """`file:line` of a key, of the section it belongs to, or the file."""
        while key:
            if key in self.lines:
                return f"{self.path}:{self.lines[key]}"
            key = key.rpartition(".")[0]
        return self.path


def read_toml(path: Path) -> Document:
    """The values of a TOML file; RecipeError names file and line if it is none."""
    text = _read_text(path)
    return Document(str(path), parse_toml(text, str(path)), key_lines(text))


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    """The values of TOML text; RecipeError begins with `origin` and the line."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return data
    except RecursionError:
        fault, line = "brackets are nested too deeply", ""
    except ValueError as error:
        message = str(error)
        place = _PLACE.search(message)
        line = f":{place[1]}" if place and place[1] else ""
        fault = _PLACE.sub("", message) + (f" at column {place[2]}" if place and place[2] else "")
        if message.startswith("Exceeds the limit"):  # Python's advice on long numbers is not ours
            fault = "a number has thousands of digits"
    raise RecipeError(
        f"{origin}{line}: not TOML: {fault}",
        remedy='write one `key = value` a line, with text in quotes: block = "parallel"',
    )


def key_lines(text: str) -> dict[str, int]:
    """Dotted key -> line number, by looking at line starts; good enough to point at."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            section = header[1].replace('"', "").replace(" ", "") + "."
            found.setdefault(section[:-1], number)
        elif key:
            name = re.sub(r"\s*\.\s*", ".", key[1]).replace('"', "")
            found.setdefault(section + name, number)
    return found


def dump_toml(data: Mapping[str, Any]) -> str:
    """Nested mappings as TOML text; None is left out, mappings become sections."""
    return "\n".join(_section(data, "")).strip("\n") + "\n"


def nearest(word: str, known: list[str], *, alike: float = 0.6) -> str | None:
    """The known word that was most likely meant; `alike` is how similar it must be, 0..1."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=alike)
    return close[0] if close else None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise _absent(path) from None
    except (IsADirectoryError, NotADirectoryError):
        raise RecipeError(
            f"{path}: not a file", remedy="name the TOML file itself, e.g. recipes/tiny.toml"
        ) from None
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}",
            remedy="check the name and that you may read the file",
        ) from None
    if len(raw) > SIZE_LIMIT:
        raise RecipeError(
            f"{path}: larger than {SIZE_LIMIT} bytes, so it is no recipe",
            remedy="name the TOML file of the run, e.g. recipes/tiny.toml",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{path}:{line}: not UTF-8 text (byte {raw[error.start]:#04x})",
            remedy="save the file as UTF-8",
        ) from None


def _absent(path: Path) -> RecipeError:
    """No such file; says which neighbour has a similar name."""
    try:
        names = [p.stem for p in path.parent.iterdir() if p.suffix == ".toml"][:1000]
    except OSError:
        return RecipeError(
            f"{path}: there is no folder {path.parent}",
            remedy="name an existing TOML file, e.g. recipes/tiny.toml",
        )
    stem = path.name.removesuffix(".toml")
    close = nearest(stem, names, alike=0.75)
    remedy = "name an existing TOML file, e.g. recipes/tiny.toml"
    shipped = path.parent / "recipes" / f"{stem}.toml"
    if close or shipped.is_file():
        remedy = f"did you mean {path.parent / f'{close}.toml' if close else shipped}?"
    return RecipeError(f"{path}: no such file", remedy=remedy)


def _section(data: Mapping[str, Any], prefix: str) -> list[str]:
    """Lines of one table: its own keys first, then its sub-tables."""
    lines = [f"[{prefix}]"] if prefix else []
    for key, value in data.items():
        if not isinstance(value, Mapping) and value is not None:
            lines.append(f"{_name(key)} = {show_value(value)}")
    for key, value in data.items():
        if isinstance(value, Mapping):
            name = f"{prefix}.{_name(key)}" if prefix else _name(key)
            lines += ["", *_section(value, name)]
    return lines


def _name(key: str) -> str:
    return key if _BARE.fullmatch(key) else show_value(key)


def show_value(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_name(k)} = {show_value(v)}" for k, v in value.items())
        return "{ " + inner + " }"
    return str(value)


def _float(value: float) -> str:
    """The shortest text that reads back as the same float, and as a float."""
    short = f"{value:g}".replace("e+", "e")
    if not math.isfinite(value) or float(short) != value:
        return repr(value)
    return short if "." in short or "e" in short else f"{short}.0"
