"""Bars of measured seconds, drawn from the tables of the documentation: a figure has one home."""

import math
import re
from pathlib import Path

from tools.svg import box, page, text

DOCS = Path(__file__).resolve().parent.parent / "docs" / "explanation"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_LEFT, _WIDTH = 250, 370


def table(name: str, first_column: str) -> list[list[str]]:
    """Rows of the table of a page whose first heading begins so; KeyError if there is none."""
    rows: list[list[str]] = []
    for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
        is_row = line.startswith("|")
        if is_row and (rows or line[1:].strip().startswith(first_column)):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    if not rows:
        raise KeyError(f"{name}: no table whose first column is {first_column!r}")
    return [row for row in rows if not set(row[0]) <= set("-: ")]


def number(cell: str) -> float | None:
    """The first number of a cell: `0.56 (0.28)` -> 0.56."""
    found = _NUMBER.search(cell)
    return float(found[0].replace(",", "")) if found else None


def bars(title: str, rows: list[list[str]], columns: dict[int, str], note: str) -> str:
    """A group of bars for each row, a bar for each column (index -> colour), on a log scale."""
    values = [v for row in rows for c in columns if (v := number(row[c]))]
    low = 10.0 ** math.floor(math.log10(min(values)))
    span = math.log10(max(values) / low)
    bottom = 28.0 + len(rows) * (14 * len(columns) + 8)
    parts = [text(8, 16, title)]
    for power in range(round(math.log10(low)), math.floor(math.log10(max(values))) + 1):
        x = _LEFT + _WIDTH * (power - math.log10(low)) / span
        parts.append(box(x, 24, 0.6, bottom - 28, "f", shade=0.5))
        parts.append(text(x, bottom + 10, f"{10.0**power:g}", "soft"))
    y = 28.0
    for row in rows:
        label = row[0].split(" (")[0].rstrip(" *")
        parts.append(text(_LEFT - 10, y + 6 + 7 * len(columns), label, "end"))
        for column, colour in columns.items():
            value = number(row[column])
            if value:
                width = max(1.0, _WIDTH * math.log10(value / low) / span)
                parts.append(box(_LEFT, y, width, 12, colour))
                parts.append(text(_LEFT + 6 + width, y + 10, f"{value:g}", "soft"))
            y += 14
        y += 8
    parts.append(text(8, y + 28, note, "soft"))
    return page(700, y + 38, parts, title)


def checkpoints() -> str:
    """What a save costs a step, and when it is durable, by system."""
    rows = table("checkpoint-performance.md", "system")
    head = rows[0]
    columns = {head.index("stall s"): "bad", head.index("durable s"): "a"}
    title = "a save of 1 GiB on two ranks: seconds that training stands still, and until durable"
    return bars(title, rows[1:], columns, "red: the step is longer by, blue: durable after; log")


def start_up() -> str:
    """Seconds for all process groups of 2,048 ranks, by way and by server."""
    rows = table("start-up.md", "2,048 ranks")
    title = "process groups of 2,048 ranks: seconds until all are made"
    return bars(title, rows[1:], {2: "a", 3: "e"}, "blue: Redis, yellow: TCPStore of torch; log")
