"""What the logs say, put beside what the job knows: partners of a rank whose calls do not match."""

from collections.abc import Mapping

import msgspec

from engine.diagnose.finding import Finding
from engine.diagnose.logs.triage import Triage
from engine.diagnose.readers.beats import Beat
from engine.diagnose.readers.job import Job


def crash_findings(triage: Triage, job: Job, beats: Mapping[int, Beat]) -> list[Finding]:
    """Findings of the logs; a mismatch that one rank reports concerns its partner as well."""
    return [
        _with_partner(finding, job, beats) if finding.category == "desync" else finding
        for finding in triage.findings
    ]


def _with_partner(finding: Finding, job: Job, beats: Mapping[int, Beat]) -> Finding:
    """Add the rank that stood in a collective with the one that reports the mismatch."""
    if len(finding.ranks) != 1 or not beats:
        return finding
    rank = finding.ranks[0]
    for axis in ("tp", "cp", "ep", "dp"):
        group = [r for r in job.group(axis, rank) if r != rank]
        met = [r for r in group if r in beats and _meets(beats[r].phase, axis)]
        if met:
            return msgspec.structs.replace(finding, ranks=tuple(sorted({rank, *met})))
    return finding


def _meets(phase: str, axis: str) -> bool:
    return axis in phase.lower() and any(w in phase for w in ("reduce", "gather", "scatter"))
