"""The whole product on a store that freezes: `msctl train` goes on, says so, and catches up."""

import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.ckpt.catalog import catalog

FROZEN_S = 30.0
DEADLINE_S = 8.0
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("layout.tp=1", "layout.pp=1", "layout.vpp=1", "layout.dp=1", "model.layers=2",
            "model.hidden=64", "batch.global_batch=4", "train.eval_every=0",
            "checkpoint.every=25", "checkpoint.rate_mib_s=2")  # fmt: skip


def training(root: str, server: Any, node: str) -> dict[str, Any]:
    """A run that saves every 25 steps; the store is frozen for 30 s in the middle of a drain."""
    with tempfile.TemporaryDirectory(prefix="real-training-") as scratch:
        folder = Path(scratch) / "run"
        log = Path(scratch) / "log"
        settings = [*SETTINGS, f"checkpoint.path={root}", f"checkpoint.deadline_s={DEADLINE_S}",
                    "train.steps=100000"]  # fmt: skip
        command = [sys.executable, "-m", "msctl", "train", str(ROOT / "recipes" / "tiny.toml"),
                   "--run", str(folder)]  # fmt: skip
        for setting in settings:
            command += ["--set", setting]
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        try:
            return _watch(root, server, node, process, log, folder)
        finally:
            server.send(node, signal.SIGCONT)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(120)


def _watch(
    root: str, server: Any, node: str, process: Any, log: Path, folder: Path
) -> dict[str, Any]:
    _until(lambda: max(_committed(root), default=0) >= 75, 180, log)
    server.send(node, signal.SIGSTOP)
    begin, frozen_at = time.monotonic(), _steps(folder)
    time.sleep(FROZEN_S)
    thawed_at, alarms = _steps(folder), _alarms(folder, log)
    server.send(node, signal.SIGCONT)
    time.sleep(FROZEN_S / 2)
    last = _steps(folder)
    process.send_signal(signal.SIGTERM)  # saves the last state and waits for it
    code = process.wait(180)  # its end waits no longer than the deadline; the flusher goes on
    with contextlib.suppress(TimeoutError):
        _until(lambda: len(_steps(folder)) in _committed(root), 60, log)
    newest = max(_committed(root), default=-1)
    during = last[len(frozen_at) : len(thawed_at)]
    normal = last[5 : len(frozen_at)] + last[len(thawed_at) :]
    return {"node": node, "steps_while_frozen": len(during),
            "step_s_frozen": round(statistics.median(during or [0.0]), 4),
            "step_s": round(statistics.median(normal), 4), "alarms_while_frozen": len(alarms),
            "alarm": alarms[0].partition(": ")[2][:150] if alarms else "", "exit_code": code,
            "newest_committed": newest, "last_step": len(_steps(folder)),
            "wall_s": round(time.monotonic() - begin, 1),
            "ok": bool(alarms and during) and newest == len(_steps(folder))}  # fmt: skip


def _committed(root: str) -> list[int]:
    return [info.step for info in catalog(root) if info.state == "committed"]


def _texts(folder: Path, log: Path) -> str:
    paths = [log, *sorted(folder.rglob("*.log"))]
    return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())


def _alarms(folder: Path, log: Path) -> list[str]:
    lines = _texts(folder, log).splitlines()
    return sorted({line for line in lines if "is not in the store after" in line})


def _steps(folder: Path) -> list[float]:
    """Seconds of every step so far."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["step_s"] for line in lines if line.endswith("\n")]


def _until(condition: Any, seconds: float, log: Path) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened in time: {log.read_text()[-300:]}")
        time.sleep(0.5)
