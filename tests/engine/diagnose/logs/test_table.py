"""The table of rules keeps its own promises: strengths, names, and what the first cut relies on."""

import re

import pytest

from engine.diagnose.categories import CATEGORIES
from engine.diagnose.logs.rules import DIGITS
from engine.diagnose.logs.scan import _loosened
from engine.diagnose.logs.table import RULES, WAKE, _r


def test_every_rule_is_complete():
    for rule in RULES:
        text = rule.pattern.pattern
        assert rule.category in CATEGORIES or rule.category == WAKE, text
        assert rule.strength in ((0,) if rule.category == WAKE else (0.6, 1, 2, 3)), text
        assert rule.pattern.flags & re.IGNORECASE
        assert set(rule.pattern.groupindex) <= {"gpu", "rank", "ranks", "pid", "reaped"}, text
        assert not re.search(r"\d", rule.needs), "the first cut asks for it with digits deleted"
        assert rule.pattern.search("") is None, text


def test_no_rule_stands_twice():
    assert len({rule.pattern.pattern for rule in RULES}) == len(RULES)


def test_only_rules_of_absurd_sizes_come_first():
    first = RULES[0]
    assert first.category == WAKE
    assert first.pattern.search("Tried to allocate 123456.00 GiB")
    assert first.pattern.search("tried to allocate more than 1EB memory")
    assert not first.pattern.search("Tried to allocate 79.15 GiB")


@pytest.mark.parametrize(
    ("pattern", "reads"),
    [
        (r"Xid \([^)]*\): 79\b", True), (r"rank \d+", True), (r"[1-9] errors", True),
        (r"out of memory", False), (r".{0,40}exceeds", False), (r"\w+Error", False),
        (r"a{3}", False), (r"a{3,12} 4", True),
    ],
)  # fmt: skip
def test_whether_digits_decide(pattern, reads):
    assert _r("crash", 1, pattern).reads_digits == reads


def test_what_a_rule_matches_its_digit_blind_form_matches_whatever_the_digits():
    """Asked of lines that are made of the patterns themselves, digits in place of their classes."""
    asked = 0
    for rule in DIGITS:
        assert rule.reads_digits
        loose = _loosened(rule.source)
        for piece in re.split(r"\|(?![^(]*\))", rule.pattern.pattern):
            line = re.sub(r"\\d(?:[+*]|\{[\d,]+\})?", "48", piece)
            if not rule.pattern.search(line):
                continue
            asked += 1
            assert loose.search(line), line
            for digit in ("", "7", "123"):
                assert loose.search(re.sub(r"\d+", digit, line)), line
    assert asked > 20
