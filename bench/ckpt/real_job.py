"""A trainer of one rank for real_stores.py: a state known by its step, two-stage saves, a judge."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.ckpt.arena import FlushStatus
from engine.ckpt.flush import FlushOptions
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import Piece
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.two_stage import Taken, TwoStage

COLUMNS = 1024


def pieces_of(rows: int, step: int | None, seed: int = 0) -> list[Piece]:
    """A matrix and a vector; without a step, empty ones to load into."""
    made = []
    for name, shape in (("layers.0.weight", (rows, COLUMNS)), ("layers.0.bias", (COLUMNS,))):
        size = rows * COLUMNS if len(shape) == 2 else COLUMNS
        value = torch.full((size,), -1.0)
        if step is not None:
            torch.arange(size, out=value)
            value.mul_(0.37).add_(step * 1009 + seed * 31 + len(name))
        box = tuple((0, n) for n in shape)
        made.append(Piece(name=name, slot="param", global_shape=shape, box=box, flat=(0, size),
                          tensor=value))  # fmt: skip
    return made


class Job:
    """Saves into a store through a flusher of its own."""

    living: ClassVar[list["Job"]] = []

    def __init__(self, root: str, *, mib: int = 32, mib_s: float = 0.0, keep: int = 0,
                 seed: int = 0) -> None:  # fmt: skip
        self.root, self.rows, self.seed = root, mib * 256, seed
        self.spool = Path("/dev/shm") / f"real-stores-{uuid.uuid4().hex[:8]}"
        self.pieces = pieces_of(self.rows, 0, seed)
        self.stalls: list[float] = []
        self.two = TwoStage(
            root, self.pieces, rank=0, world=1, gather=lambda item: [item], spool=self.spool,
            options=FlushOptions(bytes_per_s=mib_s * (1 << 20), retry_first_s=0.2,
                                 retry_most_s=2.0), keep=keep,
        )  # fmt: skip
        self.two.prepare()
        self.living.append(self)

    def save(self, step: int) -> Taken:
        """Change the state to that of a step and save it; notes the seconds inside `save`."""
        fresh = pieces_of(self.rows, step, self.seed)
        for piece, new in zip(self.pieces, fresh, strict=True):
            piece.tensor.copy_(new.tensor)
        begin = time.perf_counter()
        taken = self.two.save(self.pieces, CheckpointMeta(step=step))
        self.stalls.append(time.perf_counter() - begin)
        return taken

    @property
    def status(self) -> FlushStatus:
        return self.two.status()

    def until_writing(self, share: float = 0.2, timeout_s: float = 60.0) -> int:
        """Wait until the drain is in the middle; returns the percentage written."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            now = self.status
            if now.writing and share * now.total_bytes <= now.done_bytes < now.total_bytes:
                return 100 * now.done_bytes // now.total_bytes
            time.sleep(0.005)
        raise TimeoutError(f"no drain was seen in its middle: {self.status}")

    def kill_flusher(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        pid = self.status.pid
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
            time.sleep(0.01)

    def die(self) -> None:
        """Trainer, flusher and memory are gone, as when a node is lost."""
        self.kill_flusher()
        shutil.rmtree(self.spool)

    @classmethod
    def end_all(cls) -> None:
        """Leave no flusher and no memory behind, however a scenario ended."""
        while cls.living:
            job = cls.living.pop()
            if job.spool.exists():
                with contextlib.suppress(OSError):
                    job.die()
                shutil.rmtree(job.spool, ignore_errors=True)

    def close(self) -> None:
        """End in order."""
        if self.spool.exists():
            self.two.close()

    def is_exact(self, step: int) -> bool:
        """Whether the newest checkpoint of a step loads as it was saved, all digests compared."""
        got, want = pieces_of(self.rows, None), pieces_of(self.rows, step, self.seed)
        meta = load_checkpoint(f"{self.root}/step-{step:08d}", got)
        same = all(torch.equal(g.tensor, w.tensor) for g, w in zip(got, want, strict=True))
        return same and meta.step == step


def msctl(*arguments: str) -> tuple[int, dict[str, object] | list[object]]:
    """A command of the product as a user runs it; exit code and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "msctl", "ckpt", *arguments, "--json"],
        capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, [done.stdout[-200:], done.stderr[-300:]]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
