"""Findings that no single line shows: who waits elsewhere, who is silent, who was busy."""

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.logs.claims import Claim, Source
from engine.diagnose.logs.ends import first_lines, last_lines, last_words
from engine.diagnose.logs.places import is_progress, rank_in
from engine.diagnose.logs.series import find_jumps, find_shift
from engine.diagnose.logs.watchdog import Crowd, Stall, crowd, is_timeout

_BUSY = re.compile(
    r"\d+%\|.*\| *\d+/\d+ \[|\b(?:tokeniz|preprocess|map|generating|building|download|load|convert|"
    r"filter|pack|sav|compil|warm)\w*\b.*?(?:\d+ ?%|\d+/\d+|num_proc|examples)",
    re.IGNORECASE,
)
"""A progress bar or preparation message: somebody works while the others wait."""
_FEW = 0.1


def stall_findings(
    findings: list[Finding],
    stalls: list[Stall],
    wakes: list[Claim],
    sources: list[Source],
    world: int,
) -> list[Finding]:
    """The findings of the lines, joined by those that only a comparison of ranks gives."""
    strong = [f for f in findings if f.confidence >= 0.55]
    if strong and not wakes:
        return findings
    reporting = {c.rank for c in wakes if c.rank is not None}
    files = {s.place.rank for s in sources if s.place.rank is not None}
    together = crowd(stalls, reporting, world=max(world, len(files)))
    extra: list[Finding] = []
    if together.parted:
        extra.append(_parted(together.parted))
    if strong:
        return extra + findings if extra and strong[0].confidence < 0.7 else findings + extra
    extra += _busy(together, sources, stalls)
    extra += _odd(together)
    extra += _silent(together, sources, wakes)
    if not extra and wakes:
        extra.append(_only_waiting(together, wakes))
    if not extra and not findings:
        extra += _paces(sources) or last_words(sources)
    return extra + findings


def _parted(stalls: tuple[Stall, ...]) -> Finding:
    first = min(stalls, key=lambda s: s.line)
    listed = ", ".join(f"rank {s.voice} in {s.op} {s.seq}" for s in stalls[:6])
    same = {s.rank for s in stalls}
    return Finding(
        kind="hang",
        category="desync",
        ranks=tuple(sorted(same)) if len(same) == 1 else _fewer(stalls),
        confidence=0.8,
        what=f"ranks wait in different collectives of one group: {listed}",
        why="their order of calls parted",
        evidence=_lines(stalls, first),
        next=next_step("desync"),
        source="logs",
    )


def _fewer(stalls: tuple[Stall, ...]) -> tuple[int, ...]:
    """Who waits in another call than at least twice as many others; nobody if that is not clear."""
    calls = Counter((s.seq, s.op, s.numel) for s in stalls)
    usual, votes = calls.most_common(1)[0]
    others = [s.voice for s in stalls if (s.seq, s.op, s.numel) != usual]
    return tuple(sorted(others)) if votes >= 2 * len(others) else ()


def _lines(stalls: Iterable[Stall], first: Stall) -> tuple[Evidence, ...]:
    rows = [first, *[s for s in stalls if s is not first][:3]]
    return tuple(
        Evidence(file=s.file, line=s.line, rank=s.rank, text=s.text.strip()[:500]) for s in rows
    )


def _busy(together: Crowd, sources: list[Source], stalls: list[Stall]) -> list[Finding]:
    """One silent rank and a progress bar between the waits of the others."""
    if len(together.silent) != 1 or len(sources) > 4 or not stalls:
        return []
    for source in sources:
        for number, line in [*first_lines(source.scan), *last_lines(source.scan)]:
            if _BUSY.search(line) and rank_in(line) in (None, *together.silent):
                rank = together.silent[0]
                return [
                    Finding(
                        kind="hang",
                        category="rank_blocked",
                        ranks=(rank,),
                        confidence=0.75,
                        what=f"rank {rank} is busy while the others wait: {line.strip()[:120]}",
                        why=f"all others time out in one collective, rank {rank} is silent",
                        evidence=(
                            Evidence(
                                file=str(source.scan.path), line=number, rank=rank, text=line[:500]
                            ),
                        ),
                        next=next_step("rank_blocked"),
                        source="logs",
                    )
                ]
    return []


def _odd(together: Crowd) -> list[Finding]:
    """A rank that waits in another collective than nearly all others."""
    if not together.odd:
        return []
    own = [s for s in together.stalls if s.rank in together.odd]
    category = "desync" if together.comparable else "unknown_hang"
    return [
        Finding(
            kind="hang",
            category=category,
            ranks=together.odd,
            confidence=0.6,
            what=f"rank {', '.join(map(str, together.odd[:8]))} waits in {own[0].op} {own[0].seq}, "
            "the others elsewhere",
            why="nearly all ranks wait in one collective, this one in another",
            evidence=_lines(own, own[0]),
            next=next_step(category),
            source="logs",
        )
    ]


def _silent(together: Crowd, sources: list[Source], wakes: list[Claim]) -> list[Finding]:
    """Few ranks that say nothing while the others complain."""
    few = max(8, int(_FEW * together.world))
    if not together.silent or len(together.silent) > few or together.odd:
        return []
    if 2 * len(together.silent) >= together.world:
        return []
    timed_out = bool(together.stalls) or any("imeout" in w.text for w in wakes)
    closed = any("closed" in w.text or "reset" in w.text for w in wakes)
    category = "crash" if closed and not timed_out else "unknown_hang"
    mine = [s for s in sources if s.place.rank in together.silent]
    jumps = _paces(mine) if len(mine) == 1 else []
    if jumps:
        return [msgspec.structs.replace(jumps[0], ranks=together.silent)]
    listed = ", ".join(map(str, together.silent[:8]))
    first = next((w for w in wakes), None)
    found = ", its log ends without a word" if mine else ""
    return [
        Finding(
            kind="crash" if category == "crash" else "hang",
            category=category,
            ranks=together.silent,
            confidence=0.7 if mine else 0.5,
            what=f"rank {listed} says nothing while the others wait for it{found}",
            why=f"{len({w.rank for w in wakes})} ranks report that they wait or lost a peer",
            evidence=_claim_lines(first),
            next=next_step(category),
            source="logs",
        )
    ]


def _only_waiting(together: Crowd, wakes: list[Claim]) -> Finding:
    first = min(wakes, key=lambda w: (_tells(w.text), w.file, w.line))
    return Finding(
        kind="hang",
        category="unknown_hang",
        confidence=0.5,
        what=f"only waiting is visible: {first.text.strip()[:140]}",
        why=f"{len(wakes)} lines of {len({w.rank for w in wakes})} ranks, none shows a cause",
        evidence=_claim_lines(first),
        next=next_step("unknown_hang"),
        source="logs",
    )


def _tells(text: str) -> int:
    """How much a wake tells, 0 is most: the call that did not end, a time-out, anything else."""
    if "operation timeout" in text or "Timeout at NCCL work" in text:
        return 0
    return 1 if is_timeout(text) else 2


def _claim_lines(claim: Claim | None) -> tuple[Evidence, ...]:
    if claim is None:
        return ()
    text = claim.text.strip()[:500]
    return (Evidence(file=claim.file, line=claim.line, rank=claim.rank, text=text),)


def _paces(sources: list[Source]) -> list[Finding]:
    """Step times that jump or stay longer, read from the last lines of the first files."""
    for source in sources[:4]:
        rows = [(n, line) for n, line in last_lines(source.scan) if is_progress(line)]
        shift = find_shift(rows)
        if shift is not None:
            what = f"from line {shift.line} on every step takes {shift.factor:.1f} times as long"
            why = "no step is as quick again: a slower device or link, or other work on the node"
            return [_pace(source, rows, shift.line, "perf_straggler", what, why)]
        jump = find_jumps(rows)
        if jump is not None:
            what = f"every {1 / jump.share:.1f}th step takes {jump.factor:.1f} times longer"
            why = "quick and slow steps take turns: the input pipeline refills a queue"
            return [_pace(source, rows, jump.line, "perf_data", what, why)]
    return []


def _pace(
    source: Source, rows: list[tuple[int, str]], line: int, category: str, what: str, why: str
) -> Finding:
    shown = next(text for number, text in rows if number == line)
    return Finding(
        kind="perf" if category == "perf_data" else "straggler",
        category=category,
        confidence=0.6 if category == "perf_data" else 0.5,
        cost=0.3,
        source="logs",
        what=what,
        why=why,
        evidence=(Evidence(file=str(source.scan.path), line=line, text=shown.strip()[:500]),),
        next=next_step(category),
    )
