"""The trainer's side of a two-stage save: copy into the arena, leave a ticket, go on.

Nothing here touches the store after start-up, so a slow or hung store never reaches the training
step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from engine.ckpt.arena import SLOTS, CommitJob, FlushStatus, Spool, Ticket, check_room, map_slot
from engine.ckpt.arena import spool_folder as default_spool
from engine.ckpt.catalog import folder_name, parse_folder
from engine.ckpt.flush import FlushOptions, open_wake
from engine.ckpt.leftovers import drop_hopeless, start_flusher
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import Piece
from engine.ckpt.ring import Place, Ring
from engine.ckpt.save import Gather, describe_part
from engine.ckpt.store import absolute, open_store
from engine.errors import CheckpointError, EngineError, MissingError
from engine.spec.base import Noun

logger = logging.getLogger(__name__)

SlotState = Literal["free", "pending", "busy"]


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
    place: Place | None = None
    """Where the rank is and where its node takes copies, if nodes keep copies."""


class _Start(Noun, frozen=True, kw_only=True):
    """What one rank brings to a start: its node, its arena, the checkpoints it has parts of."""

    place: str
    need: int
    holds: tuple[str, ...]
    owner: str = ""
    """Rank 0's draw of an id for this run, by which its flushers know its folders."""


class _UnderWay(NamedTuple):
    """A snapshot between `begin` and `finish`."""

    slot: int
    lock: int
    folder: str
    meta: CheckpointMeta


class TwoStage:
    """Saves of one rank, made at start-up with the pieces that every save will have.

    The memory of `SLOTS` whole snapshots is allocated and touched once, by `prepare`.
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
        keep: int = 0,
        ring: Ring | None = None,
    ) -> None:
        """Take the rank's place in the spool; wait up to `drain_s` if it holds another layout's.

        gather   as in save_checkpoint
        spool    folder in memory, the same for all ranks of a node; default: from `root`
        keep     newest checkpoints that the flusher keeps after each commit; 0 = all
        ring     how nodes keep copies for one another; None: they do not
        Raises   MissingError, on every rank, if the arenas of a node do not fit into its memory
        """
        from engine.ckpt.copying import open_copier
        from engine.ckpt.snapshot import plan_pieces

        self.root = absolute(root)
        self.rank, self.world, self.gather, self.keep = rank, world, gather, keep
        self.options = options or FlushOptions()
        self.spool = Spool(spool or default_spool(self.root))
        self.image = plan_pieces(pieces, rank)
        self._ring = ring
        self._copier = open_copier([piece.tensor for piece in pieces], copy_threads)
        self._owner: int | None = self.spool.take_owner(rank)
        self.spool.mark_closed(rank, False)
        self._wake = open_wake(self.spool)
        self._slots: list[np.ndarray] = []
        self._under_way: _UnderWay | None = None
        deadline = time.monotonic() + drain_s
        self._await_leftovers(deadline)
        self._agree_on_start(deadline)
        self._used = self._used_attempts() if rank == 0 else {}

    def prepare(self) -> None:
        """Allocate the memory and start the node's flusher; may run in a thread of its own.

        The first save does it if nobody has: it then takes as long as fresh memory does.
        """
        if not self._slots:
            self._slots = [self._map(slot) for slot in range(SLOTS)]
        if self._ring:
            self.spool.write_peers(self.spool.peers() or self._ring.alone())
        self._ensure_flusher()
        if self._ring:
            self._ring.wait_for_address(self.spool)

    def save(self, pieces: Sequence[Piece], meta: CheckpointMeta) -> Taken:
        """Snapshot the pieces; when this returns, they may change. Called by all ranks together.

        If the store cannot keep up, an older snapshot that waits gives way, or this one is skipped;
        the log and the result say so. Training is never held up for it.
        """
        taken = self.begin(pieces, meta, background=False)
        return msgspec.structs.replace(taken, seconds=taken.seconds + self.finish())

    def begin(
        self, pieces: Sequence[Piece], meta: CheckpointMeta, *, background: bool = True
    ) -> Taken:
        """Begin a snapshot, as `save` does; the pieces must not change before `finish`."""
        assert self._under_way is None, "the snapshot before was not finished"
        start = time.perf_counter()
        held = self._hold_slots()
        slot = None
        try:
            views = self._exchange([lock is not None for lock in held], meta)
            slot = choose_slot([view for view, _ in views])
            if self._ring:
                self._ring.close_up(self.spool, [view.place for view, _ in views if view.place])
            if slot is None:
                logger.warning("step %d is not saved: earlier ones are being written", meta.step)
                return Taken(step=meta.step, folder="", seconds=time.perf_counter() - start)
            folder = views[0][1]
            dropped = self._clear(slot, [view for view, _ in views])
            lock = held[slot]
            assert lock is not None, "a chosen slot is free on every rank"
            sources = [
                (offset, pieces[index].tensor)
                for index, offset in zip(self.image.order, self.image.offsets, strict=True)
            ]
            self._under_way = _UnderWay(slot, lock, folder, meta)
            self._copier.start(self._slots[slot], sources, background=background)
        finally:
            for index, lock in enumerate(held):
                if lock is not None and (self._under_way is None or index != slot):
                    os.close(lock)
        seconds = time.perf_counter() - start
        return Taken(step=meta.step, folder=folder, dropped_step=dropped, seconds=seconds)

    @property
    def is_under_way(self) -> bool:
        """Whether a snapshot was begun and not finished."""
        return self._under_way is not None

    def _hold_slots(self) -> list[int | None]:
        """Locks on the slots nobody uses; none if there is no memory, so that no rank saves."""
        try:
            self.prepare()
        except (OSError, EngineError) as error:
            logger.warning("no memory for checkpoints: %s", error)
            return [None] * SLOTS
        return [self.spool.take(self._name(slot)) for slot in range(SLOTS)]

    def finish(self) -> float:
        """Wait until the snapshot that was begun is whole, and hand it to the flusher.

        Returns the seconds waited; without a snapshot under way nothing is done.
        """
        if self._under_way is None:
            return 0.0
        start = time.perf_counter()
        (slot, lock, folder, meta), self._under_way = self._under_way, None
        try:
            self._copier.finish()
            self._issue(slot, folder, meta)
        finally:
            os.close(lock)
        os.write(self._wake, b"!")
        return time.perf_counter() - start

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
            self._copier.close()
            self.spool.mark_closed(self.rank)
            os.close(self._owner)
            self._owner = None
            with contextlib.suppress(OSError):
                os.write(self._wake, b"!")
            with contextlib.suppress(FileNotFoundError):  # another rank has freed it
                self.spool.free_if_unused()

    @property
    def _file(self) -> str:
        return f"rank-{self.rank:05d}.safetensors"

    def _name(self, slot: int) -> str:
        return f"r{self.rank:05d}.{slot}"

    def _map(self, slot: int) -> np.ndarray:
        """A slot's memory with the header of the rank's file in it."""
        memory = np.frombuffer(
            map_slot(self.spool.image(self.rank, slot), self.image.bytes, create=True), np.uint8
        )
        header = np.frombuffer(self.image.header, np.uint8)
        if not np.array_equal(memory[: len(header)], header):
            memory[: len(header)] = header
        self._copier.pin(memory)
        return memory

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
        place = self._ring.place(self.spool) if self._ring else None
        mine = (_SlotView(states=tuple(states), steps=tuple(steps), place=place), name)
        every = self.gather(msgspec.json.encode(mine))
        found = []
        for item in every:
            found.append(msgspec.json.decode(_bytes(item), type=tuple[_SlotView, str]))
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
        jobs = self.spool.jobs() + self.spool.jobs("dropped")
        for folder in [job.folder for job in jobs] + self._held:
            step, attempt = parse_folder(folder) or (0, 0)
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
            why = self.spool.status().error or "the store is slower than the saves"
            logger.warning("step %d gives way unsaved: %s", step, why)
        return step

    def _issue(self, slot: int, folder: str, meta: CheckpointMeta) -> None:
        part = describe_part(self.image, self._file, "", rank=self.rank)
        ticket = Ticket(
            state="pending", root=self.root, folder=folder, world=self.world, meta=meta, part=part,
            owner=self._run,
        )  # fmt: skip
        if self.rank == 0:
            job = CommitJob(
                root=self.root, folder=folder, world=self.world, meta=meta, keep=self.keep,
                created_s=time.time(), owner=self._run,
            )  # fmt: skip
            self.spool.write_job(folder, job)
        self.spool.write_ticket(self.rank, slot, ticket)

    def _pending(self) -> bool:
        return any(ticket.state == "pending" for ticket in self._tickets())

    def _await_leftovers(self, deadline: float) -> None:
        """Make the slots this rank's own: what another layout left is flushed, then forgotten."""
        while self._foreign("pending"):
            self._ensure_flusher()
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{self.spool.folder} still holds an earlier run's snapshot: "
                    f"{self.status().error}",
                    remedy=f"make {self.root} writable, or give it up with "
                    f"rm -r {self.spool.folder}",
                )
            time.sleep(0.05)
        for slot in self._foreign("flushed"):
            self.spool.write_ticket(self.rank, slot, None)

    def _foreign(self, state: str) -> list[int]:
        """Slots whose snapshot has another shape than this rank's will have."""
        mine = describe_part(self.image, self._file, "", rank=self.rank)
        found = []
        for slot in range(SLOTS):
            ticket = self.spool.ticket(self.rank, slot)
            if ticket is None or ticket.state != state:
                continue
            file = ticket.part.file
            same = ticket.part.tensors == mine.tensors and file and file.bytes == self.image.bytes
            if not same or ticket.root != self.root or ticket.world != self.world:
                found.append(slot)
        return found

    def _agree_on_start(self, deadline: float) -> None:
        """Whether the arenas of all ranks of a node fit, and what an earlier run can still commit.

        Raises MissingError on every rank if the memory of any node is too small.
        """
        mine = _Start(
            place=f"{platform.node()}:{self.spool.folder}", need=SLOTS * self.image.bytes,
            holds=tuple(ticket.folder for ticket in self._tickets()),
            owner="" if self.rank else os.urandom(8).hex(),
        )  # fmt: skip
        starts = [
            msgspec.json.decode(_bytes(item), type=_Start)
            for item in self.gather(msgspec.json.encode(mine))
        ]
        self._run = starts[0].owner
        self._held = [folder for start in starts for folder in start.holds]
        error = b""
        try:
            check_room(self.spool.folder, sum(s.need for s in starts if s.place == mine.place))
            if self.rank == 0:
                self._settle_jobs(starts, deadline)
            here = {rank for rank, s in enumerate(starts) if s.place == mine.place}
            if self.rank == min(here):
                self.spool.forget_ranks_but(here)
        except MissingError as found:
            error = msgspec.json.encode((found.what, found.remedy))
        for item in map(_bytes, self.gather(error)):
            if item:
                what, remedy = msgspec.json.decode(item, type=tuple[str, str])
                raise MissingError(what, remedy=remedy)

    def _settle_jobs(self, starts: Sequence[_Start], deadline: float) -> None:
        """Commits of an earlier run go on if every rank still has its part, else they are over."""
        jobs = [
            job
            for job in self.spool.jobs()
            if job.world != self.world or any(job.folder not in s.holds for s in starts)
        ]
        while jobs and self.spool.pending() and time.monotonic() < deadline:
            self._ensure_flusher()
            time.sleep(0.05)
        if jobs:
            drop_hopeless(self.spool)

    def _tickets(self) -> list[Ticket]:
        found = (self.spool.ticket(self.rank, slot) for slot in range(SLOTS))
        return [ticket for ticket in found if ticket is not None]

    def _ensure_flusher(self) -> None:
        start_flusher(self.spool, self.options)


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


def _bytes(item: object) -> bytes:
    assert isinstance(item, bytes), "gather returns what it was given"
    return item
