"""The whole product on a store that freezes: `msctl train` goes on, says so, and catches up."""

import re
import signal
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
                    "train.steps=2000"]  # fmt: skip
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
    _until(lambda: len(_committed(root)) >= 2, 180, log)
    server.send(node, signal.SIGSTOP)
    before, begin = _step(folder, log), time.monotonic()
    time.sleep(FROZEN_S)
    while_frozen, alarm = _step(folder, log) - before, _alarms(folder, log)
    server.send(node, signal.SIGCONT)
    after = _step(folder, log)
    time.sleep(FROZEN_S / 2)
    rate = (_step(folder, log) - after) / (FROZEN_S / 2)
    process.send_signal(signal.SIGTERM)  # saves the last state and waits for it
    code = process.wait(180)
    newest = max(_committed(root), default=-1)
    return {"node": node, "steps_per_s_frozen": round(while_frozen / FROZEN_S, 2),
            "steps_per_s_after": round(rate, 2), "alarms_while_frozen": len(alarm),
            "alarm": alarm[0][-150:] if alarm else "", "exit_code": code,
            "newest_committed": newest, "last_step": _step(folder, log),
            "wall_s": round(time.monotonic() - begin, 1),
            "ok": bool(alarm) and while_frozen > 0 and newest > after}  # fmt: skip


def _committed(root: str) -> list[int]:
    return [info.step for info in catalog(root) if info.state == "committed"]


def _texts(folder: Path, log: Path) -> str:
    paths = [log, *sorted(folder.rglob("*.log"))]
    return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())


def _alarms(folder: Path, log: Path) -> list[str]:
    lines = _texts(folder, log).splitlines()
    return sorted({line for line in lines if "is not in the store after" in line})


def _step(folder: Path, log: Path) -> int:
    found = re.findall(r"\bstep[ =]+(\d+)", _texts(folder, log))
    return max((int(step) for step in found), default=0)


def _until(condition: Any, seconds: float, log: Path) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened in time: {log.read_text()[-300:]}")
        time.sleep(0.5)
