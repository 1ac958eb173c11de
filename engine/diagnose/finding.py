"""The nouns of a diagnosis: evidence, finding, verdict, report.

A detector returns findings and never decides; `arbiter.py` orders them and makes the verdict. A
finding that another one explains becomes a symptom under it.
"""

from typing import Annotated, Literal

from msgspec import field

from engine.spec.base import Noun, Ratio, doc

State = Literal["healthy", "degraded", "faulty", "unknown"]
Kind = Literal["none", "hang", "crash", "straggler", "perf", "traffic", "forecast", "input"]


class Evidence(Noun, frozen=True, kw_only=True):
    """Where a finding can be seen."""

    file: Annotated[str, doc("path as given, empty if it is no single file")] = ""
    line: Annotated[int | None, doc("1-based line of the file")] = None
    rank: Annotated[int | None, doc("global rank the evidence comes from")] = None
    text: Annotated[str, doc("the line itself or what was measured")] = ""


class Finding(Noun, frozen=True, kw_only=True):
    """One thing that a detector saw."""

    kind: Annotated[Kind, doc("what sort of trouble")]
    category: Annotated[str, doc("cause class, e.g. cuda_oom, rank_blocked, perf_straggler")]
    what: Annotated[str, doc("one sentence: who and what")]
    why: Annotated[str, doc("the measurement or the chain of waits behind it")] = ""
    ranks: Annotated[tuple[int, ...], doc("culprit ranks")] = ()
    nodes: Annotated[tuple[str, ...], doc("culprit nodes, as named in the input")] = ()
    device: Annotated[str, doc("GPU, NIC or process where the input names one")] = ""
    step: Annotated[int | None, doc("first step at which it shows")] = None
    confidence: Annotated[Ratio, doc("0..1")] = 0.5
    cost: Annotated[float, doc("share of each step that is lost to it, 0 = unknown or all")] = 0.0
    evidence: Annotated[tuple[Evidence, ...], doc("best first")] = ()
    next: Annotated[str, doc("what to do, one imperative sentence")] = ""
    source: Annotated[str, doc("the detector that saw it")] = ""


class Symptom(Noun, frozen=True, kw_only=True):
    """Something many ranks report that is an effect, not the cause."""

    what: str
    count: int
    first: Evidence


class Verdict(Noun, frozen=True, kw_only=True):
    """The answer: what, who, where it can be seen, how sure, what next."""

    state: State
    kind: Kind = "none"
    category: str = ""
    what: str = ""
    why: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    device: str = ""
    file: str = ""
    line: int | None = None
    confidence: Ratio = 0.0
    next: str = ""


class TimeShare(Noun, frozen=True, kw_only=True):
    """One part of the step: seconds of an average step, and its share of the step."""

    name: str
    seconds: float
    share: float


class RankTimes(Noun, frozen=True, kw_only=True):
    """Where one rank's step goes: seconds by part of an average step."""

    rank: int
    tp: int
    pp: int
    dp: int
    step_s: float
    parts_s: dict[str, float]
    excess: Annotated[
        float, doc("own work against peers of its stage and replica, 0.1 = 10 % more")
    ]


class Times(Noun, frozen=True, kw_only=True):
    """Where the step time of a run went."""

    steps: tuple[int, int]
    ranks: int
    step_s: float
    parts: tuple[TimeShare, ...]
    per_rank: Annotated[tuple[RankTimes, ...], doc("slowest against its peers first")]
    notes: tuple[str, ...] = ()


class WaterfallRow(Noun, frozen=True, kw_only=True):
    """One loss between peak and measured, in points of MFU (0..1) and seconds of a step."""

    name: str
    seconds: float
    points: float


class WhatIf(Noun, frozen=True, kw_only=True):
    """What the step would be without one finding."""

    without: str
    step_s: float
    gain: Annotated[float, doc("share of the measured step that is saved")]
    mfu_points: Annotated[float | None, doc("points of MFU gained, if the peak is known")] = None


class Attribution(Noun, frozen=True, kw_only=True):
    """The measured step against the simulated one."""

    measured_s: float
    ideal_s: Annotated[float, doc("this schedule, stage medians, transfers free, no stragglers")]
    mfu: float | None
    rows: tuple[WaterfallRow, ...]
    critical_path: tuple[str, ...]
    what_if: tuple[WhatIf, ...]


class RankWait(Noun, frozen=True, kw_only=True):
    """What a rank stood in when the job hung."""

    rank: int
    at: str
    waits_for: tuple[int, ...] = ()
    age_s: float = 0.0
    silent: bool = False


class Report(Noun, frozen=True, kw_only=True):
    """All that one call of `msctl diagnose` found."""

    verdict: Verdict
    job: str = ""
    world: int = 0
    layout: dict[str, int] = field(default_factory=dict)
    last_step: int | None = None
    read: Annotated[dict[str, int], doc("files read by kind")] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    unreadable: tuple[Evidence, ...] = ()
    waits: Annotated[tuple[RankWait, ...], doc("of a hang, the first 4,096 ranks")] = ()
    times: Times | None = None
    attribution: Attribution | None = None
    seconds: Annotated[float, doc("how long the diagnosis took")] = 0.0
