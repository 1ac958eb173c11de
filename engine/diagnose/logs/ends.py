"""The two ends of a log, and what it complains of at the end if no rule knows better.

No table knows all components. A log that stops at a line of level ERROR is not that of a healthy
job: the line is shown, with little confidence.
"""

import re
from collections.abc import Sequence

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.logs.claims import Source
from engine.diagnose.logs.places import is_progress, node_in, rank_in
from engine.diagnose.logs.rules import talks_about
from engine.diagnose.logs.scan import FileScan

_COMPLAINT = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|SEVERE|PANIC)\b|^\[?[EF]\d{4} |"
    r"(?i:\b(?:died|crashed|unexpectedly|unrecoverable|evicted)\b)"
)
_NONE = re.compile(
    r"\b(?:0|no|without|zero) (?:\w+ )?(?:ERROR|FATAL|CRITICAL)|\bERROR[ :=]+(?:0|None)\b"
)
_FEW = 16
"""Ranks that are named; if more end so, none of them is the one."""
_CONFIDENCE = 0.35


def first_lines(scan: FileScan) -> list[tuple[int, str]]:
    """The beginning of a file with the numbers of its lines."""
    return list(enumerate(scan.head.split("\n"), 1))


def last_lines(scan: FileScan) -> list[tuple[int, str]]:
    """The end of a file with the numbers of its lines; the first of them may be cut."""
    lines = scan.tail.removesuffix("\n").split("\n")
    return list(enumerate(lines, scan.lines - len(lines) + 1))


def last_words(sources: Sequence[Source]) -> list[Finding]:
    """A finding for complaints after the last sign of progress; none if there are none."""
    found = [(s, *said) for s in sources if not s.place.kernel and (said := _complaint(s.scan))]
    if not found:
        return []
    ranks = {r for s, _, text in found if (r := _rank(s, text)) is not None}
    source, _, text = found[0]
    node = node_in(text) or source.place.node
    who = f"rank {min(ranks)}" if len(ranks) == 1 else node or "the job"
    return [
        Finding(
            kind="crash", category="crash", confidence=_CONFIDENCE,
            ranks=tuple(sorted(ranks)) if len(ranks) <= _FEW else (),
            nodes=(node,) if node else (),
            what=f"{who}: the log ends with a complaint that no rule knows: {text.strip()[:160]}",
            why=f"{len(found)} of {len(sources)} logs report no step after such a line",
            evidence=tuple(
                Evidence(file=str(s.scan.path), line=n, rank=_rank(s, t), text=t.strip()[:500])
                for s, n, t in found[:5]
            ),
            next=next_step("crash"), source="logs",
        )
    ]  # fmt: skip


def _rank(source: Source, text: str) -> int | None:
    return source.place.rank if source.place.rank is not None else rank_in(text)


def _complaint(scan: FileScan) -> tuple[int, str] | None:
    """The first complaint after the last line of progress."""
    first = None
    for number, text in reversed(last_lines(scan)):
        if is_progress(text):
            break
        if _COMPLAINT.search(text) and not _NONE.search(text) and not talks_about(text):
            first = number, text
    return first
