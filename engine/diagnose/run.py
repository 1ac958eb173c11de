"""Diagnose a run of ours: its folder in, a report out.

Reads `events/`, `log/`, `result.json` and `recipe.toml` of the run folder. Detectors return
findings, `arbiter.py` makes the verdict.
"""

import math
import re
import time
from pathlib import Path
from typing import Any

from engine.diagnose import arbiter
from engine.diagnose.attribution import attribute
from engine.diagnose.categories import next_step
from engine.diagnose.decline import find_decline
from engine.diagnose.finding import Evidence, Finding, Kind, Report, Times
from engine.diagnose.hang import find_hang, rank_waits
from engine.diagnose.load import MOST_BYTES, Spans, load_spans
from engine.diagnose.openspans import open_waits
from engine.diagnose.pace import find_pace
from engine.diagnose.readers.names import rank_of_name
from engine.diagnose.record import Record, read_record
from engine.diagnose.times import step_times
from engine.errors import TraceError
from engine.units import show_seconds


def diagnose_run(folder: Path, *, last: int | None = None, most_bytes: int | None = None) -> Report:
    """What is wrong with a run, and where its step time went.

    last  only that many newest steps; None takes all that fit into memory
    most_bytes  read only so much of the events of all ranks, the newest; None: a limit
    Raises TraceError if the folder holds no readable events.
    """
    report, _ = diagnose_spans(folder, last=last, most_bytes=most_bytes)
    return report


def last_life(folder: Path) -> Path:
    """The run, or its newest incident if the run never began again after it."""
    if not any((folder / "events").glob("rank-*.jsonl")):
        for past in sorted((folder / "incidents").glob("*"), reverse=True):
            if any((past / "events").glob("rank-*.jsonl")):
                return past
    return folder


def diagnose_spans(
    folder: Path, *, last: int | None = None, most_bytes: int | None = None
) -> tuple[Report, Spans]:
    """The report together with the arrays it was made of (heat map, timeline)."""
    begin = time.perf_counter()
    if not folder.is_dir():
        raise TraceError(
            f"{folder}: no such run folder", remedy="name a folder under runs/, or --job last"
        )
    folder = last_life(folder)
    spans = load_spans(folder / "events", last=last, most_bytes=most_bytes or MOST_BYTES)
    record = read_record(folder)
    result = record.result
    states = {} if result.get("ended") == "done" else open_waits(spans)
    pace = find_pace(spans)
    findings = arbiter.arrange(
        [
            *_failures(spans),
            *find_hang(states, range(spans.layout.world_size), source="open spans"),
            *(_seen_by_driver(folder, record) or _outcome(spans, result)),
            *pace,
            *find_decline(spans, record, [f for f in pace if f.kind == "straggler"]),
            *_numbers(folder, record),
        ]
    )
    times = step_times(spans)
    healthy = _healthy(spans, times, result) + _mended(record)
    stale = _stale(spans, times, result)
    verdict = arbiter.conclude(findings, healthy=healthy, enough=not stale, unclear=stale)
    report = Report(
        verdict=verdict,
        job=folder.name,
        world=spans.layout.world_size,
        layout={a: spans.layout.degree(a) for a in ("tp", "pp", "dp")},
        last_step=max((t.last_step for t in spans.tails.values()), default=None),
        read={"events": len(spans.ranks)},
        findings=tuple(findings),
        times=times,
        waits=rank_waits(states),
        attribution=attribute(spans, record, findings),
        not_looked_at=_gaps(folder, spans),
        unreadable=tuple(Evidence(file=file, text=text) for file, text in spans.unreadable),
        seconds=time.perf_counter() - begin,
    )
    return report, spans


def _failures(spans: Spans) -> list[Finding]:
    """Ranks that recorded an error, the first in time as the cause."""
    failed = [tail for tail in spans.tails.values() if tail.error]
    if not failed:
        return []
    own = [t for t in failed if not _is_wake(t.error)]
    if not own:
        return []  # all of them only lost a peer: the one that is gone left no error
    first = min(own, key=lambda tail: tail.last_wall_ns)
    category = _category(first.error)
    wake = [tail.rank for tail in failed if tail.rank != first.rank]
    return [
        Finding(
            kind="crash",
            category=category,
            ranks=(first.rank,),
            step=first.last_step,
            what=f"rank {first.rank} failed in step {first.last_step}: {first.error[:200]}",
            why=f"{len(wake)} other ranks failed after it" if wake else "no other rank failed",
            evidence=(
                Evidence(
                    file=first.file, line=first.error_line, rank=first.rank, text=first.error[:500]
                ),
            ),
            confidence=0.9,
            next=next_step(category),
            source="events",
        )
    ]


def _is_wake(error: str) -> bool:
    """Whether an error is what a rank sees when another one has gone."""
    signs = (
        "PeerLost",
        "Connection closed by peer",
        "Connection reset",
        "Timed out",
        "timed out",
        "Broken pipe",
        "Read error",
        "Interrupted",
        "KeyboardInterrupt",
    )
    return any(sign in error for sign in signs)


def _category(error: str) -> str:
    return "cuda_oom" if "out of memory" in error else "code_error"


def _numbers(folder: Path, record: Record) -> list[Finding]:
    """A loss or gradient norm that is no number, or that left its past by far."""
    for line, row in enumerate(record.metrics, 1):
        wrong = [n for n in ("loss", "grad_norm") if not _is_number(getattr(row, n))]
        if wrong and row.step_s is not None:
            return [
                Finding(
                    kind="crash",
                    category="numeric",
                    step=row.step,
                    confidence=0.9,
                    what=f"{wrong[0]} is no number from step {row.step}",
                    evidence=(
                        Evidence(file=str(folder / "metrics.jsonl"), line=line, text=wrong[0]),
                    ),
                    next=next_step("numeric"),
                    source="metrics",
                )
            ]
    return []


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _outcome(spans: Spans, result: dict[str, Any]) -> list[Finding]:
    """Ranks whose files end without an end, where others recorded theirs or failed."""
    silent = [t for t in spans.tails.values() if not (t.ended or t.error or t.open)]
    others = [t for t in spans.tails.values() if t.ended or t.error or t.open]
    world = set(range(spans.layout.world_size))
    dark = {rank_of_name(Path(file).name) for file, _ in spans.unreadable}
    absent = sorted(world - set(spans.tails) - dark)
    if not silent and (not absent or all(t.ended and not t.error for t in others)):
        return []  # no job ends in order without one of its ranks: that rank's file is not here
    if not others and result.get("ended") is None and not absent:
        return []  # still running
    ranks = _ended_by(result) or tuple([t.rank for t in silent] + absent)
    if len(ranks) > max(1, len(world) // 2):
        return []
    last = min(silent, key=lambda t: t.last_wall_ns) if silent else None
    where = f" after step {last.last_step}, {last.last_name}" if last else ""
    listed = ", ".join(map(str, ranks[:8]))
    return [
        Finding(
            kind="crash",
            category="crash",
            ranks=ranks,
            step=last.last_step if last else None,
            what=f"rank {listed} ended without a word{where}",
            why=str(result.get("cause") or f"{len(others)} other ranks recorded how they ended"),
            evidence=(
                Evidence(file=last.file, rank=last.rank, text=f"last span: {last.last_name}"),
            )
            if last
            else (),
            confidence=0.8,
            next=next_step("crash"),
            source="missing ends",
        )
    ]


def _seen_by_driver(folder: Path, record: Record) -> list[Finding]:
    """What the driver saw, if the folder is that of an incident."""
    seen = record.incident
    if seen is None or not seen.what:
        return []
    kind: Kind = "hang" if seen.kind == "hang" else "crash"
    category = _CATEGORIES.get(seen.kind, "crash")
    return [
        Finding(
            kind=kind,
            category=category,
            ranks=seen.ranks[:64],
            step=seen.step,
            what=seen.what[:300],
            why=f"the driver saw it, {seen.kind}"
            + (f" in step {seen.step}" if seen.step is not None else ""),
            evidence=(Evidence(file=str(folder / "recovery.json"), text=seen.what[:300]),),
            confidence=min(0.9, max(0.3, seen.confidence)),
            next=seen.remedy or next_step(category),
            source="driver",
        )
    ]


def _ended_by(result: dict[str, Any]) -> tuple[int, ...]:
    """The rank that the driver saw end by a signal or an exit code."""
    cause = str(result.get("cause"))
    found = re.match(r"rank (\d{1,7}) (?:was ended by|exited with|ended with)", cause)
    return (int(found[1]),) if found else ()


def _healthy(spans: Spans, times: Times | None, result: dict[str, Any]) -> str:
    ended = sum(tail.ended for tail in spans.tails.values())
    state = "ended in order" if ended == len(spans.tails) else "is running"
    if times is None:
        return f"the run {state}; it has no complete step yet"
    return (
        f"the run {state}, steps {times.steps[0]}-{times.steps[1]} "
        f"of {show_seconds(times.step_s)}, "
        "no rank slower than its peers"
    )


def _stale(spans: Spans, times: Times | None, result: dict[str, Any]) -> str:
    """What is to be said of a run that recorded no end and is not heard of any more; else empty."""
    if result or any(tail.ended for tail in spans.tails.values()):
        return ""
    age_s = time.time() - max(tail.last_wall_ns for tail in spans.tails.values()) / 1e9
    if age_s < max(_STALE_S, _STALE_STEPS * (times.step_s if times else 0.0)):
        return ""
    return f"no rank recorded an end, and the last event is {show_seconds(age_s)} old"


_STALE_S, _STALE_STEPS = 900.0, 20
"""A run that recorded nothing for so long, and for so many steps, may have ended."""
_CATEGORIES = {"hang": "rank_blocked", "numbers": "numeric", "corruption": "node_fault"}
"""Kind of an incident that says more than that something ended -> category."""


def _mended(record: Record) -> str:
    """`; came back from 2 incidents, the last: ...`."""
    if not record.mended:
        return ""
    count = len(record.mended)
    past = f"{count} incident{'s' if count > 1 else ''}"
    return f"; it came back from {past}, the last: {record.mended[-1].what[:120]}"


def _gaps(folder: Path, spans: Spans) -> tuple[str, ...]:
    gaps = []
    missing = spans.layout.world_size - len(spans.ranks)
    if missing:
        gaps.append(f"events of {missing} ranks (no readable file)")
    if spans.cut:
        gaps.append(f"older events of {spans.cut} ranks (of large files the ends were read)")
    if not (folder / "result.json").is_file():
        gaps.append("how the run ended (no result.json)")
    gaps.append("network counters (no traffic file)")
    return tuple(gaps)
