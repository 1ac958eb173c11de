"""What a check says, and how many such sayings combine into one verdict.

`error` (the check itself broke or did not end) and `skip` (there was nothing to look at) are never
`ok`: a node whose checks could not run has not been shown to be fit.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from engine.spec.base import NonNegative, Noun

Status = Literal["ok", "warn", "fail", "error", "skip"]
Action = Literal["none", "watch", "fix", "reset", "reboot", "evict", "rma"]
"""What to do: look again, change a setting, reset the device, reboot, take the node out of the
job, send the part back. Ordered from mild to severe."""
Convention = Literal["house", "nagios", "npd"]
Measure = float | int | str | None

ORDER: tuple[Status, ...] = ("skip", "ok", "warn", "error", "fail")
"""From least to most alarming. `fail` beats `error`, since it is certain."""
ACTIONS: tuple[Action, ...] = ("none", "watch", "fix", "reset", "reboot", "evict", "rma")

_EXIT: dict[Convention, dict[Status, int]] = {
    "house": {"ok": 0, "warn": 0, "fail": 4, "error": 4, "skip": 5},
    "nagios": {"ok": 0, "warn": 1, "fail": 2, "error": 3, "skip": 3},
    "npd": {"ok": 0, "warn": 0, "fail": 1, "error": 2, "skip": 2},
}
"""Exit code by convention and worst status. `skip` is the worst only if nothing could be looked
at."""


class CheckResult(Noun, frozen=True, kw_only=True):
    """One statement of one check about one target."""

    check: str = ""
    target: str = "node"
    """`node`, a part such as `gpu3` or `mlx5_2/1`, or a pair `n17<->n18`."""
    status: Status
    measured: Measure = None
    expected: Measure = None
    unit: str = ""
    bar: str = ""
    """Where the expectation comes from: a profile, the fleet's median, the vendor's rule."""
    message: str
    remedy: str = ""
    action: Action = "none"
    evidence: str = ""
    """The line or value that was read, for a person who doubts."""
    seconds: NonNegative = 0.0


class NodeReport(Noun, frozen=True, kw_only=True):
    """Everything that was found out about one node."""

    node: str
    machine: str
    """What the node is, as `8 x NVIDIA H100 80GB HBM3, 192 cores`."""
    profile: str
    level: str
    boot_id: str = ""
    time_s: float
    """Seconds since 1970 at the start."""
    seconds: NonNegative
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions and the like, compared between the nodes of a job."""
    results: tuple[CheckResult, ...]

    @property
    def status(self) -> Status:
        """The worst of the results."""
        return worst(self.results)


def passed(
    message: str,
    *,
    target: str = "node",
    measured: Measure = None,
    unit: str = "",
    expected: Measure = None,
    bar: str = "",
) -> CheckResult:
    """A result that is well."""
    return CheckResult(
        status="ok",
        message=message,
        target=target,
        measured=measured,
        expected=expected,
        unit=unit,
        bar=bar,
    )


def worst(results: Iterable[CheckResult]) -> Status:
    """The most alarming status; `skip` if there is nothing or nothing was looked at."""
    return max((r.status for r in results), key=ORDER.index, default="skip")


def severest(results: Iterable[CheckResult]) -> Action:
    """The action that the results call for together."""
    return max((r.action for r in results), key=ACTIONS.index, default="none")


def exit_code(results: Iterable[CheckResult], convention: Convention) -> int:
    """The process's exit code: see `docs/reference/checks.md` for the three conventions."""
    return _EXIT[convention][worst(results)]


def bad(results: Iterable[CheckResult]) -> list[CheckResult]:
    """What is neither ok nor skipped, most alarming first."""
    found = [r for r in results if r.status in ("warn", "error", "fail")]
    return sorted(found, key=lambda r: -ORDER.index(r.status))


def count(results: Iterable[CheckResult]) -> dict[Status, int]:
    """How many results have each status, in the order fail, error, warn, ok, skip."""
    seen = Counter(r.status for r in results)
    order: tuple[Status, ...] = ("fail", "error", "warn", "ok", "skip")
    return {status: seen[status] for status in order}


def skipped(results: Iterable[CheckResult]) -> list[tuple[str, list[str]]]:
    """What was not looked at: each reason with the checks it kept from running."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.status == "skip":
            reasons.setdefault(result.message, []).append(result.check)
    return sorted(reasons.items(), key=lambda item: -len(item[1]))


def npd_line(results: Sequence[CheckResult], *, limit: int = 80) -> str:
    """One short line for a scheduler or node-problem-detector: the worst finding first."""
    found = bad(results)
    if not found:
        seen = count(results)
        return f"ok: {seen['ok']} checks, {seen['skip']} skipped"
    more = f" (+{len(found) - 1})" if len(found) > 1 else ""
    line = f"{found[0].check} {found[0].target}: {found[0].message}"
    return line[: limit - len(more)] + more
