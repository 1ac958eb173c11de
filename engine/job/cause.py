"""Why a run failed: one cause out of the reports of all ranks, victims apart.

When a rank dies, its peers fail too, in the communication they shared with it. What is named is the
first rank that failed by itself; then one that was ended without a word; then what a victim saw.
"""

import signal
from typing import NamedTuple

from engine.errors import (
    CheckpointError,
    EngineError,
    LayoutError,
    MissingError,
    RecipeError,
    RunFailed,
    TraceError,
)
from engine.job.nursery import Report
from engine.train.failure import Mismatch, RankFailure

KINDS: dict[str, type[EngineError]] = {
    kind.__name__: kind
    for kind in (RecipeError, LayoutError, TraceError, CheckpointError, MissingError)
}
"""Faults of input or machine; every other is one of the run."""


class Cause(NamedTuple):
    """What is to blame; `is_own` says that a rank failed by itself, not for want of a peer."""

    what: str
    remedy: str
    kind: type[EngineError]
    is_own: bool
    ranks: tuple[int, ...] = ()
    """Whom it names."""
    bad_step: int = -1
    """The step whose numbers were not finite, if that is the cause."""
    is_exception: bool = False
    """A rank raised it and left a record, as against one that was ended from outside."""
    is_corruption: bool = False
    """Replicas did not agree on numbers; `is_own` says whether it is sure who is wrong."""


def find_cause(ended: list[Report], failures: list[RankFailure]) -> Cause:
    """The cause of a failed run.

    ended  how ranks ended, in that order, without those that the driver killed
    """
    own = sorted((f for f in failures if not f.lost_peer), key=lambda f: f.t_s)
    if own:
        first = own[0]
        if any(f.mismatch is not None for f in own):
            return _corruption(own)
        kind = KINDS.get(first.kind, RunFailed)
        what = first.what if kind is not RunFailed else f"rank {first.rank}: {first.what}"
        ranks = tuple(f.rank for f in own if f.what == first.what)
        return Cause(what, first.remedy, kind, True, ranks, first.bad_step, is_exception=True)
    known = {f.rank for f in failures}
    for report in ended:
        if report.code and report.rank not in known:
            return _unexplained(report)
    early = next((r for r in ended if r.code == 0 and r.rank not in known), None)
    if failures and early is not None:
        what = f"rank {early.rank} ended early, as if all were well"
        remedy = f"read its log, rank-{early.rank:05d}.log"
        return Cause(what, remedy, RunFailed, True, (early.rank,))
    if failures:
        first = min(failures, key=lambda f: f.t_s)
        return Cause(f"rank {first.rank}: {first.what}", first.remedy, RunFailed, is_own=False)
    return Cause("the ranks did not start", "", RunFailed, is_own=False)


def _corruption(failures: list[RankFailure]) -> Cause:
    """Who computed wrong numbers, from what every rank saw of the same check.

    A rank whose numbers changed when it computed the same again is wrong, and so are those that got
    its results. Else it is who left the majority first. What a rank got from others it did not
    compute, so the earliest place counts.
    """
    seen = {f.rank: f.mismatch for f in failures if f.mismatch is not None}
    changed = {r: m.changed_at for r, m in seen.items() if m.changed_at is not None}
    differs = {r: m.differs_at for r, m in seen.items() if m.differs_at is not None}
    places = changed or differs
    remedy = next(f.remedy for f in failures if f.mismatch is not None)
    if not places:  # whoever differed was lost before it could say so
        what = f"replicas do not agree on numbers, as {len(seen)} ranks saw that are not to blame"
        return Cause(what, remedy, RunFailed, False, is_exception=True, is_corruption=True)
    first = min(places.values())
    ranks = tuple(sorted(rank for rank, place in places.items() if place == first))
    one: Mismatch = seen[ranks[0]]
    wrong = {seen[rank].replica for rank in ranks}
    sure = bool(changed) or (one.replicas > 2 and len(wrong) == 1)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"one of ranks {list(ranks)}"
    again = "other numbers at a second try" if changed else "the same at a second try"
    what = (
        f"{who} computed wrong numbers, first {one.where(first)}: seen after step {one.step}, "
        f"where {one.replicas} replicas computed one micro-batch ({again})"
    )
    if len(wrong) > 1 and not changed:
        remedy += (
            "; if it comes at every check, nodes do not compute alike (device, libraries, "
            "NCCL_ALGO): make them alike, or set job.sdc_every to 0"
        )
    return Cause(what, remedy, RunFailed, sure, ranks, is_exception=True, is_corruption=True)


def as_error(cause: Cause, job: str) -> EngineError:
    """The cause as the error that ends the command."""
    remedy = cause.remedy or f"read `msctl diagnose --job {job}`"
    if cause.kind is not RunFailed:
        return cause.kind(cause.what, remedy=remedy)
    again = "`msctl train` with the same --run folder continues from the last checkpoint"
    return RunFailed(f"{job}: {cause.what}", remedy=f"{remedy}; {again}")


def _unexplained(report: Report) -> Cause:
    """A rank that left no record."""
    if report.code >= 0:
        what = f"rank {report.rank} ended with exit code {report.code} and no word"
        remedy = f"read its log, rank-{report.rank:05d}.log"
        return Cause(what, remedy, RunFailed, True, (report.rank,))
    name = _signal_name(-report.code)
    remedy = ""
    if name == "SIGKILL":
        remedy = "see `dmesg` whether memory ran out, which ends processes like this"
    what = f"rank {report.rank} was ended by {name}"
    return Cause(what, remedy, RunFailed, name != "SIGTERM", (report.rank,))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
