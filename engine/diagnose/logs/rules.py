"""Which row of the table counts for a line, and whether the line reports or only talks about it."""

import re
from typing import NamedTuple

from engine.diagnose.logs.table import RULES, WAKE, Rule


class Match(NamedTuple):
    """The rule that counts for a line, and whom it names."""

    rule: Rule
    named: dict[str, str]


_HELP_TEXT = re.compile(
    r"\b(?:hint|see|run ?book|means|for (?:more|debugging)|consider|may be|might be due|could be|"
    r"if you|documentation|docs|usage|--help|e\.g\.|caught (?!collective|signal)|"
    r"retry(?:ing)? with|, retrying|trying \d|ignor(?:ed|ing)|will retry|recovered)\b",
    re.IGNORECASE,
)
"""Words of a line that talks about an error instead of reporting one."""


STATIC = tuple(rule for rule in RULES if not rule.reads_digits)
DIGITS = tuple(rule for rule in RULES if rule.reads_digits)
_POSITION = {rule: number for number, rule in enumerate(RULES)}


def match(text: str) -> Match | None:
    """The strongest rule for a line; a line with a cause and a wake counts as its cause."""
    return stronger(match_in(STATIC, text), match_in(DIGITS, text))


def _force(rule: Rule) -> float:
    """A wake says more about a line than a mere exception, and less than a named cause."""
    return rule.strength or 1.5


def match_in(rules: tuple[Rule, ...], text: str) -> Match | None:
    """The strongest of some rules for a line, the first of equals."""
    best: Match | None = None
    folded = text.casefold()
    for rule in rules:
        if best is not None and _force(rule) <= _force(best.rule):
            continue
        if not rule.may_match(text, folded):
            continue
        found = rule.pattern.search(text)
        if found is not None:
            best = Match(rule, {k: v for k, v in found.groupdict().items() if v})
            if rule is RULES[0]:
                return best
    return best


def stronger(a: Match | None, b: Match | None) -> Match | None:
    """The better of two matches of one line; an absurd size overrides everything."""
    if a is None or b is None:
        return a or b
    if RULES[0] in (a.rule, b.rule):
        return a if a.rule is RULES[0] else b
    key = [(-_force(m.rule), _POSITION[m.rule]) for m in (a, b)]
    return a if key[0] < key[1] else b


def talks_about(text: str) -> bool:
    """Whether a line is advice or a caught error rather than a report."""
    return _HELP_TEXT.search(text) is not None


def classify(text: str) -> str | None:
    """The category of one error text, None if no rule knows it or it is only a wake."""
    found = match(text)
    return None if found is None or found.rule.category == WAKE else found.rule.category
