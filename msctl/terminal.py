"""How text and tables fit the width of a terminal: pure functions from words to lines and widths.

Nothing is cut. A sentence breaks at word ends. A table first gives up the width of its text
columns, then columns in which nothing stands, then the blanks beside its lines, then it stands in
parts that repeat its first column. What has sentences in it, or no column that tells rows apart,
becomes records instead: one field a line.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_NARROWEST = 32
"""Longest word that keeps its width in a table; longer ones, such as paths, are folded."""
_SENTENCE = 40
"""A cell that is wider reads better in a record than in a part of a table."""
_QUANTITY = re.compile(r"[+\-~<>]?\s?\d\S*( \S+)?")
_LONGEST_QUANTITY = 24
_WORD = re.compile(r"(\s*)(`[^`]*`\S*|\S+)")


def cell_len(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as wide_len  # its tables of wide characters take 10 ms

    return wide_len(text)


class Column(NamedTuple):
    """What a column needs."""

    least: int
    """Width below which a number or a short word would break."""
    natural: int
    """Width at which no cell breaks."""
    is_quantity: bool
    """Whether it holds only numbers, with units or without."""
    is_empty: bool


class Part(NamedTuple):
    """Columns of a table that stand side by side."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    blanks: int = 1
    """On each side of a cell."""


def wrap(text: str, width: int, hang: int = 0) -> list[str]:
    """Lines broken at word ends, all but the first indented by `hang`.

    What stands in back quotes is a command and stays whole if a line can hold it; a word that no
    line can hold, such as a path, is left for the terminal to fold.
    """
    return [line for part in text.split("\n") for line in _wrap_line(part, width, hang)]


def _wrap_line(text: str, width: int, hang: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    indent = " " * (hang if hang <= width // 3 else min(2, hang))
    lines: list[str] = []
    line = ""
    for gap, word in _words(text, width - len(indent)):
        if not line:
            line = gap + word
        elif cell_len(line + gap + word) <= width:
            line += gap + word
        else:
            lines.append(line)
            line = indent + word
    return [*lines, line] if line else [""]


def _words(text: str, width: int) -> list[tuple[str, str]]:
    """Each word with the blanks before it; a quoted command is one word if it fits."""
    found: list[tuple[str, str]] = []
    for gap, word in _WORD.findall(text):
        if " " in word and cell_len(word) > width:
            first, *rest = word.split()
            found += [(gap, first), *((" ", w) for w in rest)]
        else:
            found.append((gap, word))
    return found


def measure(name: str, cells: Sequence[str]) -> Column:
    """What a column needs to show its name and its cells."""
    filled = [cell for cell in cells if cell not in ("", "-")]
    numbers = [cell for cell in filled if _is_quantity(cell)]
    words = [w for cell in filled if not _is_quantity(cell) for w in cell.split()]
    least = max((min(cell_len(w), _NARROWEST) for w in [*name.split(), *words]), default=1)
    return Column(
        least=max([least, *map(cell_len, numbers)]),
        natural=max(1, *map(cell_len, [name, *cells])),
        is_quantity=bool(filled) and len(numbers) == len(filled),
        is_empty=not filled,
    )


def _is_quantity(cell: str) -> bool:
    """Whether a cell is a number, a range or a date, at most with a unit: it must not break."""
    return len(cell) <= _LONGEST_QUANTITY and _QUANTITY.fullmatch(cell) is not None


def arrange(columns: Sequence[Column], keys: Sequence[str], width: int) -> list[Part]:
    """Parts of a table that fit, or none if it had better be shown as records.

    `keys` are the cells of the first column.
    """
    everything = tuple(range(len(columns)))
    filled = tuple(i for i in everything if i == 0 or not columns[i].is_empty)
    for chosen in (everything, filled):
        if _needed(columns, chosen) <= width:
            return [_share(columns, chosen, width)]
    if len(keys) < 2 or any(c.natural > _SENTENCE for c in columns if not c.is_quantity):
        return []
    if _needed(columns, filled, 0) <= width:
        return [_share(columns, filled, width, 0)]
    return _parts(columns, filled, width) if len(set(keys)) == len(keys) else []


def _parts(columns: Sequence[Column], filled: Sequence[int], width: int) -> list[Part]:
    """As many columns in each part as fit, the first in all; none if one of them does not fit.

    There is room for text to stand in one line, as a further part costs little.
    """
    easy = [c if c.is_quantity else c._replace(least=c.natural) for c in columns]
    found: list[Part] = []
    now: tuple[int, ...] = (filled[0],)
    for i in filled[1:]:
        if len(now) > 1 and _needed(easy, (*now, i)) > width:
            found.append(_share(columns, now, width))
            now = (filled[0],)
        now = (*now, i)
        if _needed(columns, now) > width:
            return []
    return [*found, _share(columns, now, width)]


def _needed(columns: Sequence[Column], chosen: Sequence[int], blanks: int = 1) -> int:
    """Width of a table with lines whose columns are as narrow as they may be."""
    return 1 + sum(columns[i].least + 2 * blanks + 1 for i in chosen)


def _share(columns: Sequence[Column], chosen: tuple[int, ...], width: int, blanks: int = 1) -> Part:
    """Widths that fit: what is left after the least goes to the narrowest that still want some."""
    widths = {i: columns[i].least for i in chosen}
    left = width - _needed(columns, chosen, blanks)
    while left > 0:
        wanting = [i for i in chosen if widths[i] < columns[i].natural]
        if not wanting:
            break
        widths[min(wanting, key=lambda i: widths[i])] += 1
        left -= 1
    return Part(chosen, tuple(widths.values()), blanks)
