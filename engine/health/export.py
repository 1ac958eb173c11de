"""Reports in the forms that other programs read, and back.

A textfile for Prometheus' node_exporter, JSON and JSON lines of reports, recordings.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from engine.errors import MissingError, TraceError
from engine.health.bounded import read_bounded
from engine.health.fleet import FleetReport
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


def write_nodes(path: Path, nodes: Iterable[str]) -> None:
    """Write names of nodes, one a line, as schedulers want them for exclusion."""
    _write(path, "".join(f"{node}\n" for node in nodes).encode())


def read_reports(paths: Sequence[Path]) -> list[NodeReport]:
    """Reports of nodes from files that hold one document of a node or a fleet, or one a line.

    TraceError names a file that does not.
    """
    found: list[NodeReport] = []
    for path in paths:
        for report in _documents(path):
            found += [report] if isinstance(report, NodeReport) else report.nodes
    return found


def read_report(path: Path) -> NodeReport | FleetReport:
    """The report of a node or of a fleet."""
    return _documents(path)[0]


def _documents(path: Path) -> list[NodeReport | FleetReport]:
    try:
        data = read_bounded(path, _MAX_REPORTS)
        try:
            return [_decode(data)]
        except msgspec.DecodeError:
            found = [_decode(line) for line in data.splitlines() if line.strip()]
            if found:
                return found
            raise
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            f"{path}: not a report: {error}", remedy="write it with msctl selfcheck --json"
        ) from error


def _decode(data: bytes) -> NodeReport | FleetReport:
    """A fleet if it says which nodes it has, else a node."""
    try:
        return msgspec.json.decode(data, type=FleetReport)
    except msgspec.ValidationError:
        return msgspec.json.decode(data, type=NodeReport)
