"""The hardware counters of a heartbeat: cheap reads of files, and NVML where there is a GPU.

NVML is asked in a thread, since a wedged driver never answers: then the last values stand and the
beat goes out all the same.
"""

import os
import threading
import time
from pathlib import Path

from engine.errors import EngineError
from engine.health.heartbeat import Counters
from engine.health.nvml import GpuState, read_gpus

_GPU_EVERY_S = 10.0


class CounterReader:
    """Reads this node's counters; `root` is where /proc and /sys hang (tests have their own)."""

    def __init__(self, root: Path = Path("/"), *, gpus: bool | None = None) -> None:
        self._root = root
        self._gpus = GpuState(driver="")
        has = any((root / "dev").glob("nvidia[0-9]*")) if gpus is None else gpus
        if has:
            threading.Thread(target=self._watch_gpus, name="nvml", daemon=True).start()

    def read(self) -> Counters:
        """All counters now; what cannot be read is zero or None."""
        received, sent = network_bytes(self._root)
        gpus = self._gpus.gpus
        hot = [g.temperature for g in gpus if g.temperature is not None]
        ecc = [g.dram_uncorrected for g in gpus if g.dram_uncorrected is not None]
        return Counters(
            load=_load(), memory_free_bytes=memory_free(self._root),
            received_bytes=received, sent_bytes=sent, gpus=len(gpus),
            gpu_temperature=max(hot, default=None), ecc_uncorrected=sum(ecc) if ecc else None,
            lost_gpus=sum(bool(g.error) for g in gpus),
        )  # fmt: skip

    def _watch_gpus(self) -> None:
        while True:
            try:
                self._gpus = read_gpus()
            except EngineError:
                return
            time.sleep(_GPU_EVERY_S)


def network_bytes(root: Path) -> tuple[int, int]:
    """Bytes received and sent by all cards but loopback, RDMA ports included."""
    received = sent = 0
    for line in _text(root / "proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() != "lo" and len(words) >= 9 and words[0].isdigit() and words[8].isdigit():
            received += int(words[0])
            sent += int(words[8])
    for port in (root / "sys/class/infiniband").glob("*/ports/*/counters"):
        received += 4 * _number(port / "port_rcv_data")  # the counter's unit is four bytes
        sent += 4 * _number(port / "port_xmit_data")
    return received, sent


def memory_free(root: Path) -> int:
    """Bytes of memory that programs can still have."""
    for line in _text(root / "proc/meminfo").splitlines():
        words = line.split()
        if words[:1] == ["MemAvailable:"] and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024
    return 0


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _text(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() and len(text) < 20 else 0
