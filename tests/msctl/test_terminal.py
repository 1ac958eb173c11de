"""Text and tables at every width: nothing is cut, numbers do not break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msctl.terminal import Part, arrange, measure, wrap

SENTENCE = "28 deviations from peers of its stage and replica, clocks not compared"


def test_what_fits_stays_as_it_is():
    assert wrap("a  b   c", 8) == ["a  b   c"]
    assert wrap("", 8) == [""]
    assert wrap("a\n\nb", 8) == ["a", "", "b"]


def test_later_lines_begin_below_the_text():
    assert wrap(f"  why    {SENTENCE}", 50, 9) == [
        "  why    28 deviations from peers of its stage and",
        "         replica, clocks not compared",
    ]


def test_a_label_that_leaves_no_room_hangs_by_two():
    assert wrap("not looked at: gpu.count, gpu.driver", 24, 15) == [
        "not looked at:",
        "  gpu.count, gpu.driver",
    ]


def test_a_quoted_command_stays_whole_if_a_line_can_hold_it():
    text = "then run `msctl train x --resume auto`, please"
    assert wrap(text, 34, 2) == ["then run", "  `msctl train x --resume auto`,", "  please"]
    assert wrap(text, 20, 2) == ["then run `msctl", "  train x --resume", "  auto`, please"]


def test_a_word_that_no_line_can_hold_is_left_to_the_terminal():
    path = "/very/long/path/to/a/file"
    assert wrap(f"see {path} first", 12, 2) == ["see", f"  {path}", "  first"]


@given(st.text("ab `", max_size=80), st.integers(8, 40), st.integers(0, 20))
def test_no_width_loses_a_word(text, width, hang):
    lines = wrap(text, width, hang)
    assert " ".join(lines).split() == text.split()
    for line in lines:
        assert len(line) <= width or len(line.split()) == 1 or (len(lines) == 1 and line == text)


@pytest.mark.parametrize(
    ("cells", "least", "natural", "is_quantity"),
    [(["60 ms", "-"], 5, 7, True), (["37.26-51.52 s"], 13, 13, True),
     (["2026-11-30 11:46:07"], 19, 19, True), (["+5.6 %", "-0.1 %"], 6, 7, True),
     (["12 nodes are well"], 5, 17, False), (["x" * 50], 32, 50, False), (["", "-"], 5, 7, False)],
)  # fmt: skip
def test_a_number_keeps_its_unit_and_text_may_break(cells, least, natural, is_quantity):
    column = measure("of peers"[3:] + " x", cells)
    assert column == (least, natural, is_quantity, not any(c not in ("", "-") for c in cells))


def needs(*columns):
    return [measure(name, cells) for name, *cells in columns]


NAMES = ("name", "n1", "n2")
NUMBER = ("time", "60 ms", "1.2 s")
TEXT = ("what", "short words here", "-")
EMPTY = ("why", "", "-")


def test_text_gives_way_before_numbers_and_what_is_empty_before_both():
    columns = needs(NAMES, NUMBER, TEXT)
    assert arrange(columns, NAMES[1:], 80) == [Part((0, 1, 2), (4, 5, 16))]
    assert arrange(columns, NAMES[1:], 30) == [Part((0, 1, 2), (4, 5, 11))]
    columns = needs(NAMES, NUMBER, TEXT, EMPTY)
    assert arrange(columns, NAMES[1:], 25) == [Part((0, 1, 2), (4, 5, 6))]


def test_then_blanks_go_and_then_the_table_stands_in_parts():
    columns = needs(NAMES, *[NUMBER] * 5)
    assert arrange(columns, NAMES[1:], 48) == [Part((0, 1, 2, 3, 4, 5), (4, 5, 5, 5, 5, 5))]
    assert arrange(columns, NAMES[1:], 38) == [Part((0, 1, 2, 3, 4, 5), (4, 5, 5, 5, 5, 5), 0)]
    assert [p.columns for p in arrange(columns, NAMES[1:], 32)] == [(0, 1, 2, 3), (0, 4, 5)]


def test_parts_need_a_column_that_tells_rows_apart_and_no_sentences():
    columns = needs(NAMES, *[NUMBER] * 5)
    assert arrange(columns, ["n1", "n1"], 32) == []
    assert arrange(columns, ["n1"], 32) == []
    assert arrange(columns, NAMES[1:], 12) == []
    assert arrange(needs(NAMES, *[NUMBER] * 3, ("why", SENTENCE, "-")), NAMES[1:], 40) == []
