"""Faults of the store of checkpoints: torn, full, frozen."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.faults.hit import Hit, Struck, kill
from engine.job.drills import tear_checkpoint

STORE_BYTES = 64 << 20
"""Size of the checkpoint store in batches whose faults hit it."""
_STORE_S = 60.0


def _torn(hit: Hit) -> Struck:
    pid = hit.job.rank_pid(hit.rank)
    wrong = "" if tear_checkpoint(hit.job.folder / "ckpt") else "skip: no checkpoint to tear"
    now = time.time()
    kill(pid, signal.SIGKILL)
    return hit.rank_is(now)._replace(wrong=wrong)


def _disk_full(hit: Hit) -> Struck:
    fill, now, before = hit.job.folder / "ckpt" / "fill", time.time(), hit.job.step()
    with fill.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * (1 << 20))
                file.flush()
        except OSError:
            pass
    hit.job.wait(before + 10, 60.0)  # two checkpoints are due meanwhile
    fill.unlink()
    return hit.nobody(now, steps_meanwhile=hit.job.step() - before)


def _storage(frozen_s: float, free_s: float) -> Callable[[Hit], Struck]:
    """The store's file system answers no write for a minute, or only now and then."""

    def do(hit: Hit) -> Struck:
        store = str(hit.job.folder / "ckpt")
        now, before = time.time(), hit.job.step()
        end = time.monotonic() + _STORE_S
        while time.monotonic() < end:
            subprocess.run(["fsfreeze", "-f", store], check=True)
            try:
                time.sleep(frozen_s)
                steps = hit.job.step() - before
            finally:
                subprocess.run(["fsfreeze", "-u", store], check=True)
            time.sleep(free_s)
        wrong = "" if steps > 0 else "no step was made meanwhile"
        return hit.nobody(now, wrong=wrong, steps_meanwhile=steps)

    return do


class Store:
    """A small disk of its own at the job's checkpoints; a context manager that takes it away."""

    def __init__(self, folder: Path) -> None:
        self._at, self._image = folder / "ckpt", folder / "store.img"

    def __enter__(self) -> "Store":
        with self._image.open("wb") as file:
            file.truncate(STORE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self._at)], check=True)
        (self._at / "lost+found").rmdir()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["fsfreeze", "-u", str(self._at)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(self._at)], check=False)
        self._image.unlink(missing_ok=True)


HOW: dict[str, Callable[[Hit], Struck]] = {
    "torn-checkpoint": _torn, "disk-full": _disk_full, "storage-hang": _storage(60.0, 0.0),
    "storage-slow": _storage(0.9, 0.1),
}  # fmt: skip
