"""A report in forms that other programs read: findings.jsonl and OpenMetrics text."""

from pathlib import Path

import msgspec

from engine.diagnose.finding import Report
from engine.errors import MissingError

_STATES = ("healthy", "degraded", "faulty", "unknown")


def write_findings(report: Report, path: Path) -> int:
    """One finding a line, in causal order, with `id` and `order` (its place); returns how many."""
    encoder = msgspec.json.Encoder()
    rows = [
        {"id": f"{report.job}-{number}", "order": number, **msgspec.to_builtins(finding)}
        for number, finding in enumerate(report.findings)
    ]
    put(path, encoder.encode_lines(rows))
    return len(rows)


def write_metrics(report: Report, path: Path) -> None:
    """Write `open_metrics` of a report."""
    put(path, open_metrics(report).encode())


def put(path: Path, data: bytes) -> None:
    """Write a file; MissingError if it cannot be."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise unwritten(path, error) from None


def unwritten(path: Path, error: OSError) -> MissingError:
    """Why a file was not written, and what to do."""
    return MissingError(
        f"{path} cannot be written: {error.strerror}", remedy="give a file in a folder of yours"
    )


def open_metrics(report: Report) -> str:
    """OpenMetrics text for a text-file collector: state, findings, step, parts, stragglers."""
    job = _escaped(report.job)
    lines = ["# TYPE msctl_job_state stateset", "# HELP msctl_job_state Verdict of msctl diagnose."]
    for state in _STATES:
        value = int(report.verdict.state == state)
        lines.append(f'msctl_job_state{{job="{job}",msctl_job_state="{state}"}} {value}')
    lines += ["# TYPE msctl_findings gauge", "# HELP msctl_findings Findings by category."]
    counts: dict[str, int] = {}
    for finding in report.findings:
        counts[finding.category] = counts.get(finding.category, 0) + 1
    for category, count in sorted(counts.items()):
        lines.append(f'msctl_findings{{job="{job}",category="{category}"}} {count}')
    if report.times is not None:
        lines += _times(report, job)
    if report.attribution is not None and report.attribution.mfu is not None:
        lines += ["# TYPE msctl_mfu gauge", "# HELP msctl_mfu Model FLOP/s over peak, 0..1."]
        lines.append(f'msctl_mfu{{job="{job}"}} {report.attribution.mfu:.6g}')
    return "\n".join([*lines, "# EOF", ""])


def _times(report: Report, job: str) -> list[str]:
    times = report.times
    assert times is not None, "called only with times"
    lines = ["# TYPE msctl_step_seconds gauge", "# UNIT msctl_step_seconds seconds"]
    lines.append(f'msctl_step_seconds{{job="{job}"}} {times.step_s:.6g}')
    lines += ["# TYPE msctl_step_part_seconds gauge", "# UNIT msctl_step_part_seconds seconds"]
    for part in times.parts:
        labels = f'job="{job}",part="{part.name}"'
        lines.append(f"msctl_step_part_seconds{{{labels}}} {part.seconds:.6g}")
    slow = [f for f in report.findings if f.category == "perf_straggler"]
    if slow:
        lines.append("# TYPE msctl_straggler_cost_ratio gauge")
        for finding in slow:
            for rank in finding.ranks:
                lines.append(
                    f'msctl_straggler_cost_ratio{{job="{job}",rank="{rank}"}} {finding.cost:.6g}'
                )
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
