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
from engine.train.failure import RankFailure

_KINDS: dict[str, type[EngineError]] = {
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


def find_cause(ended: list[Report], failures: list[RankFailure]) -> Cause:
    """The cause of a failed run.

    ended  how ranks ended, in that order, without those that the driver killed
    """
    own = sorted((f for f in failures if not f.lost_peer), key=lambda f: f.t_s)
    if own:
        first = own[0]
        kind = _KINDS.get(first.kind, RunFailed)
        what = first.what if kind is not RunFailed else f"rank {first.rank}: {first.what}"
        return Cause(what, first.remedy, kind, is_own=True)
    known = {f.rank for f in failures}
    for report in ended:
        if report.code and report.rank not in known:
            return _unexplained(report)
    if failures:
        first = min(failures, key=lambda f: f.t_s)
        return Cause(f"rank {first.rank}: {first.what}", first.remedy, RunFailed, is_own=False)
    return Cause("the ranks did not start", "", RunFailed, is_own=False)


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
        return Cause(what, f"read its log, rank-{report.rank:05d}.log", RunFailed, is_own=True)
    name = _signal_name(-report.code)
    remedy = ""
    if name == "SIGKILL":
        remedy = "see `dmesg` whether memory ran out, which ends processes like this"
    what = f"rank {report.rank} was ended by {name}"
    return Cause(what, remedy, RunFailed, is_own=name != "SIGTERM")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
