"""Keep what a fault left behind, and let `diagnose` say what it means (paper 4.1, 5).

The event files, failure records and log ends of the start that failed move into the incident's
folder, which thereby is a small run folder of its own: `msctl diagnose RUN/incidents/001` reads it
at any later time.
"""

import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from engine.diagnose.finding import Report
from engine.errors import EngineError
from engine.job.incident import incident_folder

_LOG_TAIL = 1 << 18
_METRICS_TAIL = 1 << 18
_MOST_LOGS, _MOST_BYTES, _AT_ONCE = 1 << 16, 1 << 30, 32
_MOST_EVENTS = 1 << 30
"""Of all ranks: a restart may have to wait for the verdict, and a hang is told by the last step."""


def keep_evidence(run: Path, number: int) -> Path:
    """Move events and failures, copy the recipe and the ends of logs and metrics."""
    folder = incident_folder(run, number)
    (folder / "log").mkdir(parents=True, exist_ok=True)
    for name in ("events", "errors"):
        with contextlib.suppress(OSError):
            os.rename(run / name, folder / name)
    with contextlib.suppress(OSError):
        shutil.copyfile(run / "recipe.toml", folder / "recipe.toml")
    _copy_tail(run / "metrics.jsonl", folder / "metrics.jsonl", _METRICS_TAIL)
    _copy_logs(run / "log", folder / "log")
    return folder


def _copy_logs(source: Path, target: Path) -> None:
    """The ends of all logs, many at once: on a network file system each waits for its server."""
    paths = sorted(source.glob("*.log"))[:_MOST_LOGS]
    limit = min(_LOG_TAIL, _MOST_BYTES // max(1, len(paths)))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda path: _copy_tail(path, target / path.name, limit), paths))


def judge(folder: Path) -> Report | None:
    """Diagnose an incident's folder and leave the report in it; None if there was too little."""
    from engine.diagnose.run import diagnose_run  # numpy: not before it is needed

    try:
        report = diagnose_run(folder, most_bytes=_MOST_EVENTS)
    except (EngineError, OSError) as error:
        what = error.what if isinstance(error, EngineError) else str(error)
        (folder / "verdict.txt").write_text(f"no verdict: {what}\n", encoding="utf-8")
        return None
    (folder / "verdict.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    )
    verdict = report.verdict
    lines = [f"{verdict.state}: {verdict.what}", verdict.why, f"next: {verdict.next}"]
    text = "\n".join(line for line in lines if line)
    (folder / "verdict.txt").write_text(text + "\n", encoding="utf-8")
    return report


def _copy_tail(source: Path, target: Path, limit: int) -> None:
    """The last whole lines of a file."""
    try:
        with source.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except OSError:
        return
    if size > limit:
        data = data[data.find(b"\n") + 1 :]
    target.write_bytes(data)
