"""Pieces of a pattern: known ones, and that no match is ever without one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.diagnose.logs.pieces import pieces_of
from engine.diagnose.logs.table import RULES


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        ("Out of Memory", ("out of memory",)),
        (r"fail(?:ed|ure)?: \d+ errors", (" errors",)),
        (r"one|two\b|th[ri]+ee$", ()),  # "th", "ee": too short to tell
        (r"(?:lost|gone) away", (" away",)),
        (r"^(?:link down|bus error)$", ("link down", "bus error")),
        (r"(?:optional )?word", ("word",)),
        (r"(?P<rank>rank) ?\d", ("rank",)),
        (r"colou?rs+ay", ("colo",)),
        (r"ab{2,3}cde", ("cde",)),
        (r"a\.b\(c", ("a.b(c",)),
        (r"[]x]yes", ("yes",)),
        (r"[^]x]yes", ("yes",)),
        (r"(?!never )always", ("always",)),
        (r"error 79 seen", ("error ",)),
        (r"a+", ()),
        (r"\d+", ()),
        ("", ()),
    ],
)
def test_the_best_choice_that_must_be_there(pattern, pieces):
    assert pieces_of(pattern) == pieces


@given(st.data(), st.sampled_from(RULES))
def test_what_a_rule_matches_has_one_of_its_pieces(data, rule):
    text = data.draw(st.from_regex(rule.pattern))
    folded = text.casefold()
    assert not rule.pieces or any(piece in folded for piece in rule.pieces), text
    assert rule.may_match(text, folded) or (rule.needs and rule.needs not in text)


@given(st.data())
def test_what_any_pattern_matches_has_one_of_its_pieces(data):
    atom = st.one_of(
        st.sampled_from(["abc", "de f", r"\.", r"\d+", "[gh]", "[^i]", ".", r"\b", "jk?", "lm*"]),
        st.sampled_from(["(?:no|pq)?", "(?:rst|uvw)", "(?P<x>yz)", "(?=abc)", "1", "n{2}"]),
    )
    branch = st.lists(atom, max_size=5).map("".join)
    pattern = "|".join(data.draw(st.lists(branch, min_size=1, max_size=3)))
    if pattern.count("(?P<x>") > 1:
        return
    pieces = pieces_of(pattern)
    text = data.draw(st.from_regex(re.compile(pattern, re.IGNORECASE)))
    assert not pieces or any(piece in text.casefold() for piece in pieces), (pattern, text)
