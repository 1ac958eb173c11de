"""The only place that talks to a person: result to stdout, talk to stderr.

A command (see `flags.py`) receives a `Ui` and uses, in this order of importance,

    ui.result(noun, show)           the answer: with --json the noun itself, else `show(ui, noun)`
    ui.table(title, columns, rows)  rows of the answer: a table on a terminal, TSV in a pipe
    ui.line(text)                   one line of the answer, as it is: a row of a picture, a script
    ui.sentence(text, label)        words of the answer: wrapped on a terminal, one line in a pipe
    ui.note(text), ui.hint(text)    what was done and where, what to do next; on stderr, not with -q
    ui.progress(label, total)       a bar on a terminal's stderr; yields a function to advance it
    ui.exit(verdict_bad)            last call: ends with code 4 if the verdict is bad, else returns

Nothing here computes; numbers are formatted by `engine.units`. Colour never carries meaning.
"""

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TextIO, TypeVar

import msgspec
import typer

from engine.errors import EngineError, MissingError
from engine.spec.problem import Problem
from msctl.terminal import Column, Part, arrange, cell_len, measure, wrap

if TYPE_CHECKING:  # 60 ms that only a terminal needs
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")
Cell = str | int | float | None
BAD_VERDICT = 4
_MOST_PROBLEMS = 20


class AfterAnswer(Exception):
    """An error after the answer was given: the answer stands, also with --json."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(error.what)
        self.error = error


class Ui:
    """One command's way to the person or program that called it."""

    def __init__(self, *, json: bool = False, quiet: bool = False, verbose: int = 0) -> None:
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self.stands = False
        self._document: bytes | None = None
        self._tables = 0
        self._out: TextIO = sys.stdout

    @cached_property
    def stderr(self) -> "Console":
        """The terminal on which notes appear."""
        return _console(sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """Whether the answer is read on a terminal."""
        return self._out.isatty()

    @property
    def is_live(self) -> bool:
        """Whether progress may be redrawn in place on stderr."""
        return sys.stderr.isatty() and not self.quiet and os.environ.get("TERM") != "dumb"

    def result(self, noun: T, show: "Callable[[Ui, T], None]", *, stands: bool = False) -> None:
        """Give the answer: the noun as JSON, or what `show(ui, noun)` prints.

        At most one a command. The document is written when the command has ended without an error,
        so that --json always yields exactly one document.

        stands  also if the command fails afterwards; its error then goes to stderr, not into JSON
        """
        self.stands = stands
        if not self.json:
            show(self, noun)
            return
        if self._document is not None:
            raise RuntimeError("a command gave two results; --json prints exactly one document")
        self._document = encode_json(noun)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Rows of the answer; nothing with --json.

        On a terminal a table, in parts or as one record below the other where it is too narrow. In
        a pipe a header and tab-separated rows; a second table follows an empty line and `# title`.
        """
        if self.json:
            return
        self._tables += 1
        text = [[show_cell(cell) for cell in row] for row in rows]
        if not self.is_terminal:
            if self._tables > 1:
                self._write(f"\n# {clean(title)}\n")
            self._write("".join("\t".join(row) + "\n" for row in [list(columns), *text]))
            return
        console = _console(self._out)
        if title:
            self._render(console, _text("\n".join(wrap(clean(title), console.width))))
        needs = [measure(name, [row[i] for row in text]) for i, name in enumerate(columns)]
        parts = arrange(needs, [row[0] for row in text], console.width)
        for part in parts:
            self._render(console, _table(part, columns, needs, text))
        if not parts:
            self._records(columns, text, console.width)

    def line(self, text: str = "", style: str = "") -> None:
        """One line of the answer (rich style names such as `bold red`); nothing with --json."""
        if self.json:
            return
        if style and self.is_terminal:
            self._render(_console(self._out), _text(clean(text), style))
        else:
            self._write(clean(text) + "\n")

    def sentence(self, text: str, label: str = "", style: str = "") -> None:
        """Words of the answer after a label; nothing with --json.

        On a terminal later lines begin below the text, or two blanks in without a label.
        """
        if self.json:
            return
        if not self.is_terminal:
            self._write(clean(label + text) + "\n")
            return
        console = _console(self._out)
        lines = wrap(clean(label + text), console.width, cell_len(label) or 2)
        self._render(console, _text("\n".join(lines), style))

    def note(self, text: str) -> None:
        """Say what was done and where."""
        self._talk("", text, "")

    def hint(self, text: str) -> None:
        """Say what to do next."""
        self._talk("hint: ", text, "cyan")

    def warn(self, text: str) -> None:
        """Say what may surprise."""
        self._talk("warning: ", text, "yellow")

    @contextmanager
    def progress(self, label: str, total: float) -> Iterator[Callable[[float], None]]:
        """A bar on stderr while the block runs; yields `advance(amount)`. None in a pipe."""
        if not self.is_live:
            yield lambda amount: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.stderr, transient=True) as bar:
            task = bar.add_task(clean(label), total=total)
            yield lambda amount: bar.advance(task, amount)

    def exit(self, verdict_bad: bool) -> None:
        """End with code 4 if the verdict is bad; return if it is good."""
        if verdict_bad:
            raise typer.Exit(BAD_VERDICT)

    def close(self) -> None:
        """Write the JSON document; called once by `flags.py`."""
        if self.json:
            self._write((self._document or b"null\n").decode())

    def write_document(self, value: object) -> None:
        """Print a value as the one JSON document of this process."""
        self._document = encode_json(value)
        self.close()

    def _talk(self, prefix: str, text: str, style: str) -> None:
        if not self.quiet:
            _say([(prefix + clean(text), len(prefix) or 2, style)], lambda: self.stderr)

    def _records(self, columns: Sequence[str], rows: list[list[str]], width: int) -> None:
        """A table that does not fit: one field a line, an empty line after each row."""
        for row in rows:
            fields = (f"{c}: {cell}" for c, cell in zip(columns, row, strict=True) if cell)
            self._write("\n".join(line for f in fields for line in wrap(f, width, 2)) + "\n\n")

    def _render(self, console: "Console", what: "Table | Text") -> None:
        with console.capture() as captured:
            console.print(what, soft_wrap=hasattr(what, "plain"))
        self._write(captured.get())

    def _write(self, text: str) -> None:
        """Put text on stdout; a reader that went away is no error, a full disk is."""
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            silence_stdout()
            self._out = sys.stdout
        except OSError as error:
            silence_stdout()
            raise MissingError(
                f"stdout cannot be written: {error.strerror}",
                remedy="free space where the output goes, or send it elsewhere",
            ) from None


def clean(text: str) -> str:
    """Text as shown: control characters (a log may hold terminal commands) become escapes.

    So do bytes of file names that are no UTF-8, and every end of a line but a line feed.
    """
    if text.isprintable():
        return text
    return "".join(
        f"\\x{_code(c):02x}" if unicodedata.category(c) in _HIDDEN and c != "\n" else c
        for c in text
    )


_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def _code(character: str) -> int:
    """A character's number; of one that stands for a byte that is no UTF-8, the byte."""
    code = ord(character)
    return code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code


def show_cell(cell: Cell) -> str:
    """A cell as text: `-` for nothing, four digits for a bare float, no tabs or line ends."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return clean(" ".join(str(cell).split("\n")).replace("\t", " "))


def encode_json(noun: object) -> bytes:
    """A noun as one indented JSON document: raw SI values under the fields' own names."""
    try:
        data = msgspec.json.encode(noun, enc_hook=_plain)
    except UnicodeEncodeError:  # a file name that is no UTF-8
        data = msgspec.json.encode(_readable(msgspec.to_builtins(noun, enc_hook=_plain)))
    return msgspec.json.format(data, indent=2) + b"\n"


def _readable(value: object) -> object:
    """Plain values with what has no form in UTF-8 as escapes."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", lambda found: clean(found[0]), value)
    if isinstance(value, dict):
        return {_readable(key): _readable(one) for key, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, list | tuple) else value


def silence_stdout() -> None:
    """Send further output nowhere, so that the flush at exit finds nothing to complain about."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - lives until exit


def print_error(kind: str, problems: Sequence[Problem], *, json: bool, code: int) -> None:
    """What, where and remedy of each fault: on stderr, or as the one JSON document on stdout."""
    if json:
        first = {"kind": kind, "what": problems[0].what, "remedy": problems[0].remedy}
        document = {"error": first | {"exit": code, "problems": problems}}
        Ui(json=True).write_document(document)
        return
    said: list[_Said] = []
    for problem in problems[:_MOST_PROBLEMS]:
        said.append((f"error: {clean(problem.shown)}", len("error: "), _FIRST_RED))
        said.append(("", 0, ""))
        said.append((f"hint: {clean(problem.remedy)}", len("hint: "), "cyan"))
        if problem is not problems[-1]:
            said.append(("", 0, ""))
    if len(problems) > _MOST_PROBLEMS:
        said.append((f"and {len(problems) - _MOST_PROBLEMS} more problems", 2, ""))
    _say(said, lambda: _console(sys.stderr))


def _plain(value: object) -> object:
    """What msgspec does not know (paths, fractions, numpy scalars) as JSON."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


_Said = tuple[str, int, str]
"""A text for stderr, how far its later lines are moved in, its style."""
_FIRST_RED = "its first word bold red"


def _say(said: Sequence[_Said], console: "Callable[[], Console]") -> None:
    """Talk to stderr: as it is in a pipe, wrapped at word ends and with colours on a terminal."""
    if not (sys.stderr.isatty() or "FORCE_COLOR" in os.environ):
        sys.stderr.write("".join(f"{text}\n" for text, _, _ in said))
        sys.stderr.flush()
        return
    terminal = console()
    for text, hang, style in said:
        lines = wrap(text, terminal.width, hang) if sys.stderr.isatty() else [text]
        line = _text("\n".join(lines), style if style != _FIRST_RED else "")
        if style == _FIRST_RED:
            line.stylize("bold red", 0, hang)
        terminal.print(line, soft_wrap=True)


def _console(file: TextIO) -> "Console":
    """A console that prints what it is given: no markup, no emoji, no highlighting."""
    from rich.console import Console

    return Console(file=file, markup=False, emoji=False, highlight=False)


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style=style)


def _table(
    part: Part, names: Sequence[str], needs: Sequence[Column], rows: list[list[str]]
) -> "Table":
    """A rich table of some columns; those that hold only quantities are right-aligned."""
    from rich.box import ROUNDED
    from rich.table import Table

    table = Table(box=ROUNDED, padding=(0, part.blanks))
    for index, width in zip(part.columns, part.widths, strict=True):
        table.add_column(
            _text(names[index]), justify="right" if needs[index].is_quantity else "left",
            overflow="fold", width=width,
        )  # fmt: skip
    for row in rows:
        table.add_row(*(_text(row[index]) for index in part.columns))
    return table
