"""What a `show` function prints into a pipe: lines of talk, and tables as rows of cells."""

import re
import sys
from typing import NamedTuple

from msctl.ui import Ui


class Shown(NamedTuple):
    """The two streams."""

    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """Every line of the answer, cut at tabs."""
        return [line.split("\t") for line in self.out.splitlines()]

    def table(self, title: str) -> list[list[str]]:
        """The rows of a titled table below its header."""
        lines = self.out.splitlines()
        rest = lines[lines.index(f"# {title}") + 2 :]
        end = rest.index("") if "" in rest else len(rest)
        return [line.split("\t") for line in rest[:end]]


def shown(capsys, show, *nouns, **how) -> Shown:
    """Call a `show` function with a fresh Ui."""
    capsys.readouterr()
    show(Ui(**how), *nouns)
    return Shown(*capsys.readouterr())


def shown_on_terminal(capsys, monkeypatch, width, show, *nouns, **how) -> list[str]:
    """The lines that a `show` function puts on a terminal of that width, without styles."""
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(Ui(**how), *nouns)
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
