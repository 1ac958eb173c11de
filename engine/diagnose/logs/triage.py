"""First cause out of logs in any split: a file a rank, torchrun's folder, merged, dmesg.

Which category, by the strongest claims; who, by the rank whose claim is rare. What thousands of
ranks print is the wake of what one of them printed, or did not print.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.diagnose.categories import CATEGORIES, next_step
from engine.diagnose.finding import Evidence, Finding, Kind, Symptom
from engine.diagnose.logs.claims import (
    SURVIVED,
    Claim,
    Source,
    claims_of,
    first_worker,
    is_menu,
    is_retold,
    pid_ranks,
    source_of,
)
from engine.diagnose.logs.ends import last_lines
from engine.diagnose.logs.places import is_progress
from engine.diagnose.logs.scan import FileScan
from engine.diagnose.logs.stalls import stall_findings
from engine.diagnose.logs.summary import Failed
from engine.diagnose.logs.table import WAKE
from engine.diagnose.logs.watchdog import is_timeout, read_stall

_PERF: dict[str, Kind] = {"perf_gc": "perf", "perf_data": "perf", "perf_straggler": "straggler"}
_OF_ONE_RANK = frozenset(
    {"code_error", "cuda_oom", "data_error", "fs_missing", "gpu_ecc", "gpu_fault", "host_oom",
     "lib_bug", "numeric", "shm_limit"}
)  # fmt: skip
"""Causes of the worker that fails first; those of a node, a peer or all ranks are not its own."""
_SIGNALS = 126
"""Exit codes from here on are those of a shell or of a signal."""
_WIDE = 0.3
"""Reported by more than this share of the ranks: not what a single culprit prints."""


class Triage(NamedTuple):
    """What the logs of a job say."""

    findings: tuple[Finding, ...]
    symptoms: tuple[Symptom, ...]
    ranks: frozenset[int]
    """Ranks that have a file or are named by a line."""
    world: int


class Candidate(NamedTuple):
    """All claims of one category."""

    category: str
    score: float
    best: Claim
    claims: tuple[Claim, ...]
    ranks: tuple[int, ...]


def triage(
    scans: Iterable[FileScan], root: Path, *, kernel: frozenset[Path] = frozenset()
) -> Triage:
    """Findings of the logs below `root`, best first, and the wakes they left as symptoms.

    kernel  files that are kernel logs whatever they are called
    """
    sources = [source_of(scan, root, kernel=scan.path in kernel) for scan in scans]
    claims = _outlived([(source, claims_of(source)) for source in sources])
    wakes = [c for c in claims if c.category == WAKE and c.weight > SURVIVED]
    timed_out = any(is_timeout(wake.text) for wake in wakes)
    claims = [claim for claim in claims if not _after_time_out(claim, wakes)]
    first = {str(s.scan.path): failed for s in sources if (failed := first_worker(s)) is not None}
    files = {s.place.rank for s in sources if s.place.rank is not None}
    voices = files | {c.rank for c in claims if c.rank is not None}
    world = max([s.world for s in sources] + [len(files)], default=0)
    causes = [c for c in claims if c.category != WAKE and c.weight >= 0.5]
    if not causes and not timed_out:
        causes = [_exited(file, f) for file, f in first.items() if 0 < f.code < _SIGNALS]
    candidates = rank_candidates(causes, world)
    waiting = {c.rank for c in wakes if c.rank is not None}
    findings = [_finding(c, sources, waiting, world) for c in candidates[:6]]
    findings = [_by_first_worker(f, first) for f in findings]
    stalls = [
        stall
        for c in wakes
        if c.rank is not None
        and (stall := read_stall(c.rank, c.text, file=c.file, line=c.line)) is not None
    ]
    findings = stall_findings(findings, stalls, wakes, sources, world)
    return Triage(tuple(findings), _symptoms(wakes), frozenset(voices), world)


_WARNED = re.compile(
    r"\[W\d* |^W\d{4} |(?<!NCCL )\bWARN(?:ING)?\b|\b[Rr]etry(?:ing)?\b|\bwill be retried\b|"
    r"(?i:\boverflow\b)"
)
_SILENT_LINES = 40


def _outlived(told: list[tuple[Source, list[Claim]]]) -> list[Claim]:
    """All claims; warnings of ranks that report no steps count little once others made steps.

    Megatron reports on its last rank only. What the others warned of as they started did not keep
    the job from training.
    """
    ends = [(source, last_lines(source.scan)[-_SILENT_LINES:]) for source, _ in told]
    steps = {str(s.scan.path): any(is_progress(text) for _, text in lines) for s, lines in ends}
    stepped = any(steps.values())
    return [
        claim._replace(weight=min(claim.weight, 0.1))
        if stepped and not steps[claim.file] and 0 < claim.weight < 3 and _WARNED.search(claim.text)
        else claim
        for _, claims in told
        for claim in claims
    ]


def _after_time_out(claim: Claim, wakes: list[Claim]) -> bool:
    """What is printed whenever a wait was given up, and then says nothing about the cause."""
    waits = (wake for wake in wakes if is_timeout(wake.text))
    if is_menu(claim):
        return any(True for _ in waits)
    retold = is_retold(claim)
    return retold and any(w.file == claim.file and w.line < claim.line for w in waits)


def _exited(file: str, failed: Failed) -> Claim:
    """The worker that ended first with an error of its own, when no line tells which."""
    rank = failed.rank
    return Claim("code_error", 1, rank, (rank,), "", "", file, failed.line, failed.text, False)


def _by_first_worker(finding: Finding, first: dict[str, Failed]) -> Finding:
    """Whose line it is that a worker printed into a merged log without its rank."""
    seen = finding.evidence[0] if finding.evidence else None
    failed = first.get(seen.file) if seen else None
    if failed is None or finding.ranks or finding.category not in _OF_ONE_RANK:
        return finding
    return msgspec.structs.replace(finding, ranks=(failed.rank,))


def rank_candidates(claims: list[Claim], world: int) -> list[Candidate]:
    """Categories in the order of how likely each is the cause."""
    by_category: dict[str, list[Claim]] = {}
    for claim in claims:
        by_category.setdefault(claim.category, []).append(claim)
    several = len({claim.file for claim in claims}) > 1
    made = [_candidate(name, found, world) for name, found in by_category.items()]
    narrow = any(c.score >= 1 and _share(c, world) < _WIDE for c in made)
    weighed = [
        c._replace(score=c.score - 1.5) if narrow and _share(c, world) >= _WIDE and world > 8 else c
        for c in made
    ]
    return sorted(
        weighed,
        key=lambda c: (
            -c.score,
            len(c.ranks) if several else c.best.line,
            CATEGORIES[c.category].order,
            c.best.line,
        ),
    )


def _share(candidate: Candidate, world: int) -> float:
    return len(candidate.ranks) / max(1, world)


def _candidate(category: str, claims: list[Claim], world: int) -> Candidate:
    best = min(claims, key=lambda c: (-c.weight, c.line))
    strong = [c for c in claims if c.weight >= best.weight - 0.5]
    ranks = sorted({c.rank for c in strong if c.rank is not None and not c.kernel})
    return Candidate(category, best.weight, best, tuple(claims), tuple(ranks))


def _finding(candidate: Candidate, sources: list[Source], waiting: set[int], world: int) -> Finding:
    """The finding of one category, with whom it concerns."""
    best = candidate.best
    ranks, node, device = _culprit(candidate, sources, waiting, world)
    kind = _PERF.get(candidate.category, "crash")
    sure = min(0.95, 0.35 + 0.2 * candidate.score)
    who = f"rank {', '.join(map(str, ranks[:8]))}" if ranks else node or device or "the job"
    shown = [best, *[c for c in candidate.claims if c is not best and c.weight >= 1][:4]]
    return Finding(
        kind=kind,
        category=candidate.category,
        ranks=ranks,
        nodes=(node,) if node else (),
        device=device,
        confidence=max(0.05, sure),
        cost=0.05 if kind != "crash" else 0.0,
        what=f"{who}: {CATEGORIES[candidate.category].meaning}: {best.text.strip()[:160]}",
        why=f"{len(candidate.claims)} lines of {max(1, len(candidate.ranks))} ranks show it",
        evidence=tuple(
            Evidence(file=c.file, line=c.line, rank=c.rank, text=c.text.strip()[:500])
            for c in shown
        ),
        next=next_step(candidate.category),
        source="logs",
    )


def _culprit(
    candidate: Candidate, sources: list[Source], waiting: set[int], world: int
) -> tuple[tuple[int, ...], str, str]:
    """Ranks, node and device that a candidate's claims point at."""
    strong = [c for c in candidate.claims if c.weight >= max(1.0, candidate.score - 0.5)]
    named = sorted({r for c in strong for r in c.named if not world or r < world})
    device = next((c.device for c in [candidate.best, *strong] if c.device), "")
    ranks: tuple[int, ...] = candidate.ranks
    per_rank = any(s.place.rank is not None for s in sources)
    if (
        per_rank
        and named
        and not set(named) & waiting
        and candidate.category
        in (
            "rank_blocked",
            "desync",
            "rank_layout",
        )
    ) or (not per_rank and named):
        ranks = tuple(named)
    if len(ranks) > max(16, _WIDE * world):
        ranks = ()
    best = candidate.best
    if best.kernel or device.startswith("pid "):
        ranks = _by_process(candidate, sources, waiting, world) or ranks
    node = best.node or next((c.node for c in strong if c.node), "")
    return ranks[:64], node, device


def _by_process(
    candidate: Candidate, sources: list[Source], waiting: set[int], world: int
) -> tuple[int, ...]:
    """Ranks of the processes a kernel log names, else the node's ranks that say nothing."""
    known = pid_ranks(sources)
    pids = [int(c.device[4:]) for c in candidate.claims if c.device.startswith("pid ")]
    ranks = sorted({known[pid] for pid in pids if pid in known})
    if ranks:
        return tuple(ranks)
    nodes = {c.node for c in candidate.claims if c.node}
    if not candidate.best.kernel:
        return ()
    here = [s.place.rank for s in sources if s.place.rank is not None and _on(s.host, nodes)]
    silent = [rank for rank in here if rank not in waiting]
    return tuple(sorted(silent)) if 0 < len(silent) < len(here) else ()


def _on(host: str, nodes: set[str]) -> bool:
    """Whether a host is one of the nodes; `14` and `node14` are the same node."""
    bare = host.lower().removeprefix("node").lstrip("-_")
    return bool(host) and bare in {n.lower().removeprefix("node").lstrip("-_") for n in nodes}


def _symptoms(wakes: list[Claim]) -> tuple[Symptom, ...]:
    """Wakes counted by their first words, the most frequent ones."""
    groups: Counter[str] = Counter()
    first: dict[str, Claim] = {}
    for claim in wakes:
        name = _wake_name(claim.text)
        groups[name] += 1
        first.setdefault(name, claim)
    rows = []
    for name, count in groups.most_common(6):
        c = first[name]
        evidence = Evidence(file=c.file, line=c.line, rank=c.rank, text=c.text.strip()[:300])
        rows.append(Symptom(what=name, count=count, first=evidence))
    return tuple(rows)


_WAKES = (
    ("imeout", "watchdog time-out"),
    ("Watchdog", "watchdog time-out"),
    ("imed out", "watchdog time-out"),
    ("dump", "dump signal"),
    ("closed", "connection closed"),
    ("reset", "connection reset"),
    ("Child", "launcher's report"),
    ("SIGTERM", "ended by the launcher"),
    ("abort", "abort"),
    ("Exited", "exit code"),
)


def _wake_name(text: str) -> str:
    return next((name for word, name in _WAKES if word in text), "other wake")
