"""The trainer's side of a two-stage save: copy into the arena, leave a ticket, go on.

Nothing here touches the store after start-up, so a slow or hung store never reaches the training
step.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from engine.ckpt.arena import SLOTS, CommitJob, FlushStatus, Spool, Ticket, check_room, map_slot
from engine.ckpt.arena import spool_folder as default_spool
from engine.ckpt.catalog import folder_name, parse_folder
from engine.ckpt.flush import FlushOptions, open_wake
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import Piece
from engine.ckpt.save import Gather, describe_part
from engine.ckpt.store import open_store
from engine.errors import CheckpointError
from engine.spec.base import Noun

logger = logging.getLogger(__name__)

SlotState = Literal["free", "pending", "busy"]
_COPY_BLOCK = 32 << 20


class Taken(Noun, frozen=True, kw_only=True):
    """How a save went for the trainer."""

    step: int
    folder: str
    """Where it will be committed; empty if the snapshot was skipped."""

    dropped_step: int = -1
    """An older snapshot that gave way, not yet in the store; -1 = none."""

    seconds: float = 0.0


class _SlotView(Noun, frozen=True, kw_only=True):
    """One rank's view of its slots, for the agreement."""

    states: tuple[SlotState, ...]
    steps: tuple[int, ...]


class TwoStage:
    """Saves of one rank, made at start-up with the pieces that every save will have.

    The memory of `SLOTS` whole snapshots is allocated and touched here, and never again.
    """

    def __init__(
        self,
        root: str | Path,
        pieces: Sequence[Piece],
        *,
        rank: int,
        world: int,
        gather: Gather,
        spool: Path | None = None,
        options: FlushOptions | None = None,
        copy_threads: int = 1,
        drain_s: float = 120.0,
    ) -> None:
        """Map the arena, start the node's flusher, wait up to `drain_s` for an earlier run's flush.

        gather   as in save_checkpoint
        spool    folder in memory, the same for all ranks of a node; default: from `root`
        Raises   MissingError if the arenas do not fit into memory
        """
        from engine.ckpt.snapshot import plan_pieces

        self.root = str(root if "://" in str(root) else Path(root).absolute())
        self.rank, self.world, self.gather = rank, world, gather
        self.options = options or FlushOptions()
        self.spool = Spool(spool or default_spool(self.root))
        self.image = plan_pieces(pieces, rank)
        self._owner = self.spool.take(f"r{rank:05d}.owner", wait=True)
        self.spool.mark_closed(rank, False)
        self._wake = open_wake(self.spool)
        self._pool = ThreadPoolExecutor(copy_threads) if copy_threads > 1 else None
        self._ensure_flusher()
        self._await_leftovers(time.monotonic() + drain_s)
        check_room(self.spool.folder, SLOTS * self.image.bytes)
        self._slots = [
            map_slot(self.spool.image(rank, slot), self.image.bytes, create=True)
            for slot in range(SLOTS)
        ]
        for slot in range(SLOTS):
            self._memory(slot)[: len(self.image.header)] = np.frombuffer(
                self.image.header, np.uint8
            )
        self._used = self._used_attempts() if rank == 0 else {}

    def save(self, pieces: Sequence[Piece], meta: CheckpointMeta) -> Taken:
        """Snapshot the pieces; when this returns, they may change. Called by all ranks together.

        If the store cannot keep up, an older snapshot that waits gives way, or this one is skipped;
        the log and the result say so. Training is never held up for it.
        """
        start = time.perf_counter()
        self._ensure_flusher()
        held = [self.spool.take(self._name(slot)) for slot in range(SLOTS)]
        try:
            views = self._exchange([lock is not None for lock in held], meta)
            slot = choose_slot([view for view, _ in views])
            if slot is None:
                logger.warning("step %d is not saved: earlier ones are being written", meta.step)
                return Taken(step=meta.step, folder="", seconds=time.perf_counter() - start)
            folder = views[0][1]
            dropped = self._clear(slot, [view for view, _ in views])
            self._copy(slot, pieces)
            self._issue(slot, folder, meta)
        finally:
            for lock in held:
                if lock is not None:
                    os.close(lock)
        os.write(self._wake, b"!")
        seconds = time.perf_counter() - start
        return Taken(step=meta.step, folder=folder, dropped_step=dropped, seconds=seconds)

    def status(self) -> FlushStatus:
        """What the flusher of this node last said; cheap."""
        return self.spool.status()

    def is_idle(self) -> bool:
        """Whether nothing of this rank waits, and on rank 0's node nothing is to be committed."""
        return not self._pending() and not self.spool.jobs()

    def wait(self, timeout_s: float) -> bool:
        """Wait until idle, e.g. at the end of training; False if the time was too short."""
        deadline = time.monotonic() + timeout_s
        while not self.is_idle():
            if time.monotonic() > deadline:
                return False
            self._ensure_flusher()
            time.sleep(0.01)
        return True

    def close(self) -> None:
        """Leave in order; the flusher finishes what waits, frees the memory and ends by itself."""
        if self._owner is not None:
            self.spool.mark_closed(self.rank)
            os.close(self._owner)
            self._owner = None
        if self._pool:
            self._pool.shutdown()

    def _name(self, slot: int) -> str:
        return f"r{self.rank:05d}.{slot}"

    def _memory(self, slot: int) -> np.ndarray:
        return np.frombuffer(self._slots[slot], np.uint8)

    def _exchange(self, free: list[bool], meta: CheckpointMeta) -> list[tuple[_SlotView, str]]:
        """Every rank's slots, and rank 0's name for the new checkpoint."""
        states: list[SlotState] = []
        steps = []
        for slot in range(SLOTS):
            ticket = self.spool.ticket(self.rank, slot) if free[slot] else None
            waits = ticket is not None and ticket.state == "pending"
            states.append("pending" if waits else "free" if free[slot] else "busy")
            steps.append(ticket.step if ticket else -1)
        name = self._next_name(meta.step) if self.rank == 0 else ""
        mine = (_SlotView(states=tuple(states), steps=tuple(steps)), name)
        every = self.gather(msgspec.json.encode(mine))
        found = []
        for item in every:
            assert isinstance(item, bytes), "gather returns what it was given"
            found.append(msgspec.json.decode(item, type=tuple[_SlotView, str]))
        return found

    def _next_name(self, step: int) -> str:
        self._used[step] = self._used.get(step, 0) + 1
        return folder_name(step, self._used[step])

    def _used_attempts(self) -> dict[int, int]:
        """Attempts that earlier runs made at each step: their folders are never used again."""
        used: dict[int, int] = {}
        for name in open_store(self.root).folders():
            parsed = parse_folder(name)
            if parsed:
                used[parsed[0]] = max(used.get(parsed[0], 0), parsed[1])
        for job in self.spool.jobs():
            step, attempt = parse_folder(job.folder) or (0, 0)
            used[step] = max(used.get(step, 0), attempt)
        return used

    def _clear(self, slot: int, views: Sequence[_SlotView]) -> int:
        """Take back what the slot held; returns the step that is lost by it, or -1."""
        old = self.spool.ticket(self.rank, slot)
        self.spool.write_ticket(self.rank, slot, None)
        if not any(view.states[slot] == "pending" for view in views):
            return -1
        step = max(view.steps[slot] for view in views)
        if self.rank == 0 and old is not None:
            self.spool.drop_job(old.folder)
            logger.warning("step %d gives way unsaved: the store is slower than the saves", step)
        return step

    def _copy(self, slot: int, pieces: Sequence[Piece]) -> None:
        """Pieces to their places in the image, in blocks over the copying threads."""
        from engine.ckpt.snapshot import host_view

        target, jobs = self._memory(slot), []
        for index, offset in zip(self.image.order, self.image.offsets, strict=True):
            source = np.frombuffer(host_view(pieces[index].tensor), np.uint8)
            for at in range(0, len(source), _COPY_BLOCK):
                part = source[at : at + _COPY_BLOCK]
                jobs.append((target[offset + at : offset + at + len(part)], part))
        if self._pool is None:
            for to, part in jobs:
                np.copyto(to, part)
        else:
            list(self._pool.map(lambda job: np.copyto(*job), jobs))

    def _issue(self, slot: int, folder: str, meta: CheckpointMeta) -> None:
        file = f"rank-{self.rank:05d}.safetensors"
        part = describe_part(self.image, file, "", rank=self.rank)
        ticket = Ticket(
            state="pending", root=self.root, folder=folder, world=self.world, meta=meta, part=part
        )
        if self.rank == 0:
            job = CommitJob(
                root=self.root, folder=folder, world=self.world, meta=meta, created_s=time.time()
            )
            self.spool.write_job(folder, job)
        self.spool.write_ticket(self.rank, slot, ticket)

    def _pending(self) -> bool:
        tickets = (self.spool.ticket(self.rank, slot) for slot in range(SLOTS))
        return any(ticket is not None and ticket.state == "pending" for ticket in tickets)

    def _await_leftovers(self, deadline: float) -> None:
        """Let the flusher finish what an earlier run left in this rank's slots, then forget it."""
        while self._pending() and time.monotonic() < deadline:
            self._ensure_flusher()
            time.sleep(0.05)
        if self._pending():
            raise CheckpointError(
                f"{self.spool.folder} still holds an earlier run's snapshot: {self.status().error}",
                remedy=f"make {self.root} writable, or give it up with rm -r {self.spool.folder}",
            )

    def _ensure_flusher(self) -> None:
        start_flusher(self.spool, self.options)


def start_flusher(spool: Spool, options: FlushOptions) -> None:
    """Start the node's flusher if none lives."""
    with spool.hold("flusher") as free:
        if not free:
            return
    subprocess.Popen(
        [
            sys.executable, "-m", "engine.ckpt.flush", str(spool.folder),
            msgspec.json.encode(options).decode(),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def finish_leftovers(
    root: str | Path, *, spool: Path | None = None, timeout_s: float = 300.0
) -> FlushStatus | None:
    """Before a restarted run loads: let the flusher commit what the dead run had snapshotted.

    One rank per node calls it. None if nothing was left, else what the flusher says at the end.
    """
    where = str(root if "://" in str(root) else Path(root).absolute())
    folder = spool or default_spool(where)
    if not folder.is_dir():
        return None
    left, deadline = Spool(folder), time.monotonic() + timeout_s
    while left.pending() or left.jobs():
        start_flusher(left, FlushOptions())
        if time.monotonic() > deadline:
            logger.warning("%s still waits: %s", folder, left.status().error)
            break
        time.sleep(0.02)
    return left.status()


def choose_slot(views: Sequence[_SlotView]) -> int | None:
    """The slot that all ranks may overwrite: a free one, oldest first; else one that waits whole.

    A snapshot that some rank has begun to write is left to finish, so that steps do get committed
    however slow the store is; if every slot is so, there is none.
    """
    free, waiting = [], []
    for slot in range(len(views[0].states)):
        states = {view.states[slot] for view in views}
        oldest = max(view.steps[slot] for view in views)
        if states == {"free"}:
            free.append((oldest, slot))
        elif states == {"pending"}:
            waiting.append((oldest, slot))
    return min(free or waiting, default=(0, None))[1]
