"""Many findings, one verdict.

Order of causes: what ended or holds the job before what slows it; a finding with a culprit and
a cause before one that only names who waits; surer before less sure; hardware before software
(categories.py). A hang finding and a log finding on the same rank are merged: the graph says
who, the log says why.
"""

from collections.abc import Iterable

from engine.diagnose.categories import CATEGORIES
from engine.diagnose.finding import Finding, State, Verdict

_SEVERITY = {
    "crash": 0,
    "hang": 0,
    "perf": 2,
    "straggler": 2,
    "traffic": 2,
    "forecast": 3,
    "input": 4,
    "none": 5,
}
_NOTHING = "nothing here tells how the job did"
_VAGUE = frozenset({"unknown_hang", "crash", "rank_blocked"})


def arrange(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in causal order, those about the same ranks merged; the first is the verdict."""
    merged = _merge(sorted(findings, key=_key))
    return sorted(merged, key=_key)


def conclude(
    findings: list[Finding], *, healthy: str, enough: bool = True, unclear: str = _NOTHING
) -> Verdict:
    """The verdict of findings that `arrange` put in order.

    healthy is the sentence for no finding at all; enough=False turns that into `unknown`, with the
    sentence `unclear`.
    """
    first = next((f for f in findings if f.kind != "input"), None)
    if first is None:
        if not enough:
            return Verdict(
                state="unknown",
                what=unclear,
                next="name a run folder, or --logs, --fr, --traces or --heartbeats of the job",
            )
        return Verdict(state="healthy", what=healthy, confidence=0.9)
    state: State = "faulty" if _SEVERITY[first.kind] == 0 else "degraded"
    evidence = first.evidence[0] if first.evidence else None
    return Verdict(
        state=state,
        kind=first.kind,
        category=first.category,
        what=first.what,
        why=first.why,
        ranks=first.ranks,
        nodes=first.nodes,
        device=first.device,
        file=evidence.file if evidence else "",
        line=evidence.line if evidence else None,
        confidence=first.confidence,
        next=first.next or CATEGORIES[first.category].next,
    )


def _key(finding: Finding) -> tuple[float, ...]:
    vague = finding.category in _VAGUE
    named = bool(finding.ranks or finding.nodes or finding.device)
    return (
        _SEVERITY[finding.kind],
        # a bare "somebody waits" never stands before a cause, however sure it is of the waiting
        2 if finding.category == "unknown_hang" else 1 if vague and not named else 0,
        -round(finding.confidence, 1) if finding.kind in ("crash", "hang") else -finding.cost,
        CATEGORIES[finding.category].order,
    )


def _merge(findings: list[Finding]) -> list[Finding]:
    """Join a cause that names nobody surely with the graph's culprit, and equal culprits."""
    kept: list[Finding] = []
    for finding in findings:
        mate = next((i for i, other in enumerate(kept) if _same(other, finding)), None)
        if mate is None:
            kept.append(finding)
        else:
            kept[mate] = _join(kept[mate], finding)
    return kept


def _same(a: Finding, b: Finding) -> bool:
    serious = {a.kind, b.kind} <= {"hang", "crash"}
    return serious and a.source != b.source and bool(a.ranks) and set(a.ranks) == set(b.ranks)


def _join(a: Finding, b: Finding) -> Finding:
    """Who from both, why from the one that knows more."""
    cause, other = (b, a) if a.category in _VAGUE and b.category not in _VAGUE else (a, b)
    sure = 1 - (1 - a.confidence) * (1 - b.confidence)
    return Finding(
        kind=cause.kind
        if cause.kind == other.kind
        else "hang"
        if "hang" in (a.kind, b.kind)
        else cause.kind,
        category=cause.category,
        what=cause.what,
        why="; ".join(text for text in (cause.why, other.why if other.why else other.what) if text),
        ranks=cause.ranks,
        nodes=cause.nodes or other.nodes,
        device=cause.device or other.device,
        step=cause.step if cause.step is not None else other.step,
        confidence=min(0.99, sure),
        evidence=cause.evidence + other.evidence,
        next=cause.next or other.next,
        source=f"{a.source}+{b.source}",
    )
