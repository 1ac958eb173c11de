"""Compare the nodes of a fleet: versions, rates and digests that must agree."""

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.health.look import problem
from engine.health.profile import quantity
from engine.health.result import CheckResult, NodeReport

_OUTLIER = 0.8
_IGNORED_FACTS = ("vbios",)


def skew(reports: Sequence[NodeReport]) -> list[CheckResult]:
    """Versions that differ between the nodes: the minority is named."""
    found = []
    for fact in sorted({f for r in reports for f in r.facts} - set(_IGNORED_FACTS)):
        values = {r.node: r.facts.get(fact, "absent") for r in reports}
        counts = Counter(values.values()).most_common()
        if len(counts) < 2:
            continue
        usual, most = counts[0]
        tie = most * 2 <= len(reports)
        for node, value in values.items():
            if value != usual:
                found.append(
                    msgspec.structs.replace(
                        problem(
                            "warn",
                            node,
                            f"{fact} {value}, most nodes have {usual}"
                            if not tie
                            else f"{fact} {value}, others have {usual}",
                            action="fix",
                            measured=value,
                            expected=usual,
                            bar="majority of the nodes",
                            remedy=f"install one version of {fact} on all nodes",
                        ),
                        check="group.skew",
                    )
                )
    return found


def outliers(reports: Sequence[NodeReport]) -> list[CheckResult]:
    """Measured rates far below the median of the fleet, so that unknown hardware is judged too."""
    rates: dict[str, dict[str, float]] = {}
    units: dict[str, str] = {}
    for report in reports:
        for r in report.results:
            if r.status == "ok" and r.unit.endswith("/s") and isinstance(r.measured, int | float):
                key = quantity(r.check, r.target)
                slowest = rates.setdefault(key, {})
                slowest[report.node] = min(
                    float(r.measured), slowest.get(report.node, float("inf"))
                )
                units[key] = r.unit
    found = []
    for key, by_node in rates.items():
        if len(by_node) < 4:  # with three, one of them is always at the edge
            continue
        middle = statistics.median(by_node.values())
        for node, rate in by_node.items():
            if rate < _OUTLIER * middle:
                found.append(
                    msgspec.structs.replace(
                        problem(
                            "warn",
                            node,
                            f"{key} at {rate / middle:.0%} of the fleet's median",
                            action="watch",
                            measured=rate,
                            expected=middle,
                            unit=units[key],
                            bar="median of the fleet",
                            remedy="test the node again when it is idle",
                        ),
                        check="group.outlier",
                    )
                )
    return found


def digests(reports: Sequence[NodeReport]) -> list[CheckResult]:
    """Exact arithmetic gives the same bits everywhere: a node with others computes wrongly."""
    seen: dict[str, dict[str, str]] = {}
    for report in reports:
        for r in report.results:
            if r.check.endswith(".gemm") and r.evidence and r.status == "ok":
                key = quantity(r.check, r.target)
                seen.setdefault(key, {})[report.node] = r.evidence
    found = []
    for key, by_node in seen.items():
        usual, most = Counter(by_node.values()).most_common(1)[0]
        is_tie = most * 2 <= len(by_node)
        for node, value in by_node.items():
            if value != usual or (is_tie and len(by_node) > 1):
                odd = problem(
                    "error" if is_tie else "fail",
                    node,
                    f"{key} gave other bits than on other nodes",
                    action="watch" if is_tie else "rma",
                    measured=value,
                    expected=None if is_tie else usual,
                    bar="exact arithmetic",
                    remedy="take the node out at once: it is wrong without an error"
                    if not is_tie
                    else "test the nodes together with known good ones",
                )
                found.append(msgspec.structs.replace(odd, check="group.digest"))
    return found
