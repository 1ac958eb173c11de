import io
import json
import os
import pty
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from engine.errors import MissingError
from engine.spec.problem import Problem
from msctl.ui import Ui, clean, encode_json, print_error, show_cell


class _Stream(io.TextIOWrapper):
    """An in-memory stream that may be a terminal and may fail."""

    def __init__(
        self, *, terminal: bool = False, encoding: str = "utf-8", error: Exception | None = None
    ):
        super().__init__(io.BytesIO(), encoding=encoding, errors="replace", write_through=True)
        self._terminal, self._error = terminal, error

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        if self._error is not None:
            raise self._error
        return super().write(text)

    def text(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)

    def lines(self) -> list[str]:
        """What stands on the terminal, without styles."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.text()).splitlines()


@pytest.fixture
def stdout(monkeypatch):
    def use(**options):
        stream = _Stream(**options)
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return use


ROWS = [["8x8x192", 6.3412, "[model] [/etc] :smile:"], ["4x4", None, "two\tparts\nhere"]]


def test_a_pipe_gets_tab_separated_rows(stdout):
    out = stdout()
    ui = Ui()
    ui.table("Layouts", ["layout", "step [s]", "note"], ROWS)
    ui.table("More", ["n"], [[1]])
    assert out.text() == (
        "layout\tstep [s]\tnote\n8x8x192\t6.341\t[model] [/etc] :smile:\n4x4\t-\ttwo parts here\n"
        "\n# More\nn\n1\n"
    )


def test_a_pipe_never_wraps(stdout, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = stdout()
    Ui().table("", ["text"], [["x" * 500]])
    assert out.text() == "text\n" + "x" * 500 + "\n"


def test_a_terminal_gets_a_table(stdout, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    out = stdout(terminal=True)
    Ui().table("Layouts", ["layout", "step [s]", "note"], ROWS)
    lines = out.text().splitlines()
    assert lines[0].strip() == "Layouts"
    assert "│ 8x8x192 │    6.341 │ [model] [/etc] :smile: │" in lines
    assert not re.search(r"\x1b\[[0-9;]*[349][0-7]m", out.text())  # bold yes, colour no


def test_a_narrow_terminal_gets_records(stdout, monkeypatch):
    monkeypatch.setenv("COLUMNS", "16")
    out = stdout(terminal=True)
    Ui().table("", ["layout", "step [s]", "note"], ROWS)
    assert out.text().startswith("layout: 8x8x192\nstep [s]: 6.341\nnote: [model]")
    assert "\n\nlayout: 4x4\n" in out.text()


@pytest.mark.parametrize("width", [20, 30, 45, 80, 200])
def test_no_width_loses_a_character(stdout, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = stdout(terminal=True)
    rows = [[f"layout{i}", "a long sentence about it " * 3, i * 1000.5] for i in range(3)]
    Ui().table("T", ["name", "why", "s"], rows)
    shown = "".join(c for c in out.text() if c.isalnum() or c in ".")
    for name, _, seconds in rows:
        assert name in shown
        assert show_cell(seconds) in shown


RANKS = (
    ["rank", "tp", "pp", "dp", "step", "against peers", "forward", "tensor parallel", "validation"],
    [[1, 0, 1, 0, "3.15 s", "+5.6 %", "60 ms", "14.8 ms", "82.9 ms"],
     [0, 0, 0, 0, "3.15 s", "-5.3 %", "785 ms", "1.38 s", "82.9 ms"]],
)  # fmt: skip


@pytest.mark.parametrize("width", [24, 40, 60, 66, 80, 90])
def test_no_number_is_cut_or_parted_from_its_unit(stdout, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = stdout(terminal=True)
    Ui().table("Ranks", *RANKS)
    lines = out.lines()
    assert max(map(len, lines)) <= width
    for row in RANKS[1]:
        for cell in row:
            assert any(re.search(rf"(│|: ) *{re.escape(str(cell))} *(│|$)", x) for x in lines), cell
    assert all(line[-1] in "╮┤│╯" for line in lines if line[:1] in "╭├│╰" and line)


def test_sentences_wrap_at_word_ends_on_a_terminal_only(stdout, monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    text = "own `a b` and what its peers [x] do"
    out = stdout(terminal=True)
    Ui().sentence(text, "  why    ")
    Ui().sentence("a sentence without a label in front", style="bold red")
    Ui(json=True).sentence(text)
    assert out.lines() == [
        "  why    own `a b` and", "  what its peers [x] do",
        "a sentence without a", "  label in front",
    ]  # fmt: skip
    out = stdout()
    Ui().sentence(text, "  why    ", "bold")
    assert out.text() == f"  why    {text}\n"


def test_talk_wraps_at_word_ends_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = _Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    Ui().hint("look at the node and its card")
    problem = Problem(keys=(), what="x.toml: it is not there", remedy="write a file of nodes")
    print_error("RecipeError", [problem], json=False, code=3)
    assert stream.lines() == [
        "hint: look at the", "      node and its", "      card",
        "error: x.toml: it is", "  not there", "",
        "hint: write a file", "      of nodes",
    ]  # fmt: skip


def test_a_terminal_that_is_not_utf8(stdout, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = stdout(terminal=True, encoding="latin-1")
    ui = Ui()
    ui.table("Größe", ["a → b"], [["∞"]])
    ui.line("µs → ∞")
    assert "a ? b" in out.text()
    assert "µs ? ?" in out.text()
    assert "│" not in out.text()


def test_json_replaces_all_of_it(stdout):
    out = stdout()
    ui = Ui(json=True)
    ui.table("T", ["a"], [[1]])
    ui.line("x")
    ui.result(
        {"step_s": 1.5, "where": Path("runs/x"), "share": Fraction(1, 2)}, lambda ui, value: None
    )
    assert out.text() == ""
    ui.close()
    assert json.loads(out.text()) == {"step_s": 1.5, "where": "runs/x", "share": "1/2"}


def test_json_has_no_number_that_is_none():
    assert json.loads(encode_json({"a": float("nan"), "b": float("inf")})) == {"a": None, "b": None}


def test_one_result_per_command(stdout):
    stdout()
    ui = Ui(json=True)
    ui.result(1, lambda ui, value: None)
    with pytest.raises(RuntimeError, match="two results"):
        ui.result(2, lambda ui, value: None)


def test_terminal_commands_in_foreign_text_do_nothing():
    assert clean("ok \x1b]0;title\x07 \u202egnp") == "ok \\x1b]0;title\\x07 \\x202egnp"
    assert clean("äöü → 漢字 🙂") == "äöü → 漢字 🙂"
    assert clean("a\u2028b\u2029c\x85d\re") == "a\\x2028b\\x2029c\\x85d\\x0de"
    assert clean("a\nb") == "a\nb"


def test_a_name_that_is_no_utf8_is_shown_by_its_bytes():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert clean(name) == "caf\\xe9"
    assert json.loads(encode_json({name: [Path(name), ("é", 1, None)]})) == {
        "caf\\xe9": ["caf\\xe9", ["é", 1, None]]
    }


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, "-"), (1234567, "1234567"), (0.000123456, "0.0001235"), ("a\tb", "a b")],
)
def test_cells(cell, text):
    assert show_cell(cell) == text


def test_a_reader_that_went_away_is_no_error(stdout):
    stdout(error=BrokenPipeError())
    ui = Ui()
    ui.line("first")
    ui.line("second")
    ui.exit(verdict_bad=False)


def test_a_full_disk_is(stdout):
    stdout(error=OSError(28, "No space left on device"))
    with pytest.raises(MissingError, match="No space left"):
        Ui().line("first")


def test_talk_goes_to_stderr(stdout, capsys):
    ui = Ui()
    ui.note("wrote [x]")
    ui.hint("see /etc")
    ui.warn("odd")
    assert capsys.readouterr() == ("", "wrote [x]\nhint: see /etc\nwarning: odd\n")


def test_progress_is_silent_in_a_pipe(capsys):
    with Ui().progress("Verify", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def _on_a_terminal(command: list[str], columns: int) -> str:
    """What a command shows on a terminal of that width, without styles."""
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 4096):
            shown += piece
    except OSError:  # Linux says EIO when the other end is closed
        pass
    os.close(master)
    assert process.wait(timeout=60) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())


@pytest.mark.multi
def test_help_on_a_narrow_terminal():
    shown = _on_a_terminal([sys.executable, "-m", "msctl", "--help"], 40)
    assert max(len(line) for line in shown.splitlines()) <= 40


@pytest.mark.multi
def test_help_into_a_reader_that_stops():
    line = f"{sys.executable} -m msctl --help | head -1"
    ended = subprocess.run(line, shell=True, capture_output=True, timeout=60, check=True)
    assert ended.stderr == b""
