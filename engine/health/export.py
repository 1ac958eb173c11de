"""Reports in the forms that other programs read, and back.

A textfile for Prometheus' node_exporter, JSON and JSON lines of reports, recordings.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from engine.errors import MissingError, TraceError
from engine.health.recording import Recording
from engine.health.result import ACTIONS, ORDER, NodeReport, severest

_MAX_REPORTS = 256 << 20


def prometheus_text(report: NodeReport) -> str:
    """Gauges: status and action of the node, status of each finding, each measured rate."""
    node = _label(report.node)
    lines = [
        "# HELP msctl_selfcheck_status Worst status: 0 skip, 1 ok, 2 warn, 3 error, 4 fail.",
        "# TYPE msctl_selfcheck_status gauge",
        f'msctl_selfcheck_status{{node="{node}"}} {ORDER.index(report.status)}',
        "# HELP msctl_selfcheck_action Severest action: " + ", ".join(
            f"{i} {a}" for i, a in enumerate(ACTIONS)) + ".",
        "# TYPE msctl_selfcheck_action gauge",
        f'msctl_selfcheck_action{{node="{node}"}} {ACTIONS.index(severest(report.results))}',
        "# HELP msctl_selfcheck_time_seconds When the node was looked at.",
        "# TYPE msctl_selfcheck_time_seconds gauge",
        f'msctl_selfcheck_time_seconds{{node="{node}"}} {report.time_s:.3f}',
        "# HELP msctl_selfcheck_result Status of one check of one target.",
        "# TYPE msctl_selfcheck_result gauge",
    ]  # fmt: skip
    seen: dict[str, int] = {}
    for r in report.results:
        key = f'node="{node}",check="{_label(r.check)}",target="{_label(r.target)}"'
        seen[key] = max(ORDER.index(r.status), seen.get(key, 0))
    lines += [f"msctl_selfcheck_result{{{key}}} {value}" for key, value in seen.items()]
    rates = {
        f'node="{node}",check="{r.check}",target="{_label(r.target)}",unit="{r.unit}"': r.measured
        for r in report.results if r.unit.endswith("/s") and isinstance(r.measured, int | float)
    }  # fmt: skip
    if rates:
        lines += [
            "# HELP msctl_selfcheck_rate Measured rate.", "# TYPE msctl_selfcheck_rate gauge",
            *(f"msctl_selfcheck_rate{{{key}}} {value:.6g}" for key, value in rates.items()),
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_prometheus(path: Path, report: NodeReport) -> None:
    """Put the textfile in its place whole, as node_exporter's collector needs it."""
    _write(path, prometheus_text(report).encode())


def write_recording(path: Path, recording: Recording) -> None:
    """Write a recording as JSON."""
    _write(path, msgspec.json.format(msgspec.json.encode(recording), indent=1))


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.tmp")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise MissingError(
            f"{path} cannot be written: {error.strerror}", remedy="give a file in a folder of yours"
        ) from error


def read_reports(paths: Sequence[Path]) -> list[NodeReport]:
    """Reports from files that hold one JSON document, or one a line; TraceError names a bad one."""
    return [report for path in paths for report in _reports(path)]


def _reports(path: Path) -> Iterable[NodeReport]:
    try:
        if path.stat().st_size > _MAX_REPORTS:
            raise TraceError(f"{path}: larger than 256 MiB", remedy="give fewer reports a file")
        data = path.read_bytes()
        try:
            return [msgspec.json.decode(data, type=NodeReport)]
        except msgspec.DecodeError:
            lines = [line for line in data.splitlines() if line.strip()]
            return [msgspec.json.decode(line, type=NodeReport) for line in lines]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: not a report: {error}", remedy="write it with msctl selfcheck --json"
        ) from error
