"""File names that are no UTF-8, made fit for every form of a report."""

import re
from typing import TypeVar

import msgspec

from engine.diagnose.finding import Report

T = TypeVar("T")
_LONE = re.compile("[\ud800-\udfff]")


def readable(report: Report) -> Report:
    r"""The report with what has no form in UTF-8 as escapes, e.g. the name `caf\xe9` in latin-1.

    Python keeps such bytes of a name as lone surrogates, which no JSON, page or metric can hold.
    """
    try:
        msgspec.json.encode(report)
    except UnicodeEncodeError:
        return _escaped(report)
    return report


def _escaped(value: T) -> T:
    made: object = value
    if isinstance(value, str):
        made = _LONE.sub(lambda found: _escape(ord(found[0])), value)
    elif isinstance(value, tuple):
        made = tuple(_escaped(one) for one in value)
    elif isinstance(value, dict):
        made = {_escaped(key): _escaped(one) for key, one in value.items()}
    elif isinstance(value, msgspec.Struct):
        fields = {name: _escaped(getattr(value, name)) for name in value.__struct_fields__}
        made = msgspec.structs.replace(value, **fields)
    return made  # type: ignore[return-value]


def _escape(code: int) -> str:
    """A byte as its number; a surrogate that stands for none (U+DC80 to U+DCFF do) as itself."""
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
