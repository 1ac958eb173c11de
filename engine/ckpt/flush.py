"""Stage two: the process that writes snapshots to the store behind training, and commits them.

One per node, started by the first rank there and independent of it: it finishes what was
snapshotted when the trainer dies, and a restarted flusher finishes what a killed one left. Parts
are announced through the store, so the nodes need no channel of their own; rank 0's node commits
when all parts are there. Run as `python -m engine.ckpt.flush SPOOL`. Torch is not imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import msgspec

from engine.ckpt.arena import CommitJob, Peers, Spool, Ticket, map_slot
from engine.ckpt.digest import ChunkDigests
from engine.ckpt.manifest import CHUNK_BYTES, COMMITTED
from engine.ckpt.partner import Copy, Server, push
from engine.ckpt.parts import (
    already_there,
    hold_for,
    is_of_another,
    marker_state,
    part_name,
    read_parts,
)
from engine.ckpt.prune import keep_newest
from engine.ckpt.save import NotHeld, assemble, commit, hold
from engine.ckpt.store import Store, open_store
from engine.errors import EngineError
from engine.spec.base import NonNegative, Noun, Positive

logger = logging.getLogger(__name__)

OVERTAKEN_S = 600.0
GIVE_UP_S = 1800.0
"""How long a commit waits for parts of other nodes: with a newer one done, and with no trainer."""

LINGER_S = 60.0
"""How long copies are served when no trainer lives: the time of a restart."""

_TRIES = 3
_AGAIN_S = 0.1
_IDLE_S = 0.5
_WAITING_S = 0.02


class FlushOptions(Noun, frozen=True, kw_only=True):
    """How hard the flusher may work."""

    bytes_per_s: NonNegative = 0.0
    """Bound on the writing of this node; 0 = none."""

    threads: int = 2
    retry_first_s: Positive = 0.5
    retry_most_s: Positive = 60.0
    alone_s: Positive = 86400.0
    """A store that took nothing for so long since the trainer went is given up."""
    nice: int = 5
    log: str = ""
    """File for its log; empty: in the spool."""


class Partner:
    """Dealings with other nodes' flushers, if the spool says that there are any."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._peers: Peers | None = None
        self._server: Server | None = None
        self._sent: dict[tuple[int, int], str] = {}
        self._began = time.monotonic()

    def look(self) -> None:
        """Take over what the trainer says about partners; serve copies from now on."""
        peers = self._spool.peers()
        if peers is None or peers == self._peers:
            return
        if self._server is None:
            self._server = Server(self._spool, peers)
            self._spool.write_address(self._server.address)
        self._peers = peers

    def is_wanted(self) -> bool:
        """Whether a restart may still ask for copies: the run did not end in order, or not yet."""
        young = time.monotonic() - self._began < LINGER_S
        return self._server is not None and young and not self._spool.is_closed()

    def copy(self, ticket: Ticket, rank: int, slot: int) -> None:
        """Send a snapshot on, once; a partner that cannot take it is not waited for."""
        peers, key = self._peers, (rank, slot)
        if peers is None or not peers.to or self._sent.get(key) == ticket.folder:
            return
        self._sent[key] = ticket.folder
        copy = Copy(node=peers.node, rank=rank, slot=slot, folder=ticket.folder, step=ticket.step)
        for left in range(_TRIES - 1, -1, -1):
            try:
                push(peers.to, peers.secret, self._spool, copy, ticket)
                return
            except (OSError, EngineError) as error:
                if not left:
                    logger.warning("step %d has no copy on another node: %s", ticket.step, error)
                    return
            time.sleep(_AGAIN_S)  # the partner may not have been told yet whose copies it keeps


class Flusher:
    """The loop of the process: parts, then commits, then sleep until somebody calls."""

    def __init__(self, spool: Spool, options: FlushOptions) -> None:
        self.spool, self.options = spool, options
        self.stores: dict[str, Store] = {}
        self.status = spool.status()
        self._lock = Lock()
        self._not_before: dict[tuple[int, int], float] = {}
        self._delay: dict[tuple[int, int], float] = {}
        self._debt_until = 0.0
        self._alone_since = time.monotonic()
        self._partner = Partner(spool)
        self._maps: dict[tuple[int, int], tuple[int, int, memoryview]] = {}

    def run(self) -> None:
        """Work until the trainer is gone and nothing is left to do."""
        self._say(pid=os.getpid(), error="")
        wake = open_wake(self.spool)
        with ThreadPoolExecutor(self.options.threads) as pool:
            while True:
                worked = self.round(pool.map)
                if worked or self._owned():
                    self._alone_since = time.monotonic()
                elif time.monotonic() - self._alone_since > self.options.alone_s:
                    logger.warning("given up: %s", self.status.error or "the store takes nothing")
                    return  # what is in memory stays: a run in the same folder goes on with it
                busy = self.spool.jobs() or self.spool.pending()
                over = not worked and not self._owned() and self._hopeless()
                if over and not self._partner.is_wanted():
                    return
                if not worked:
                    select.select([wake], [], [], _WAITING_S if busy else _IDLE_S)
                    drain(wake)

    def round(self, run: Callable[..., Iterator[bool]]) -> bool:
        """Flush what is pending and due, commit what is complete; whether anything moved."""
        self._partner.look()
        now = time.monotonic()
        due = [key for key in self.spool.pending() if self._not_before.get(key, 0.0) <= now]
        moved = any(list(run(self._flush_one, due)))
        for job in self.spool.jobs("dropped"):
            self._remove_dropped(job)
        return any([self._commit_one(job) for job in self.spool.jobs()]) or moved

    def _hopeless(self) -> bool:
        """Whether nothing can be done: no snapshot waits, every commit lacks lost parts."""
        late = all(time.time() - job.created_s > GIVE_UP_S for job in self.spool.jobs())
        return late and not self.spool.pending()

    def _owned(self) -> bool:
        """Whether a trainer still lives."""
        for path in self.spool.folder.glob("*.owner.lock"):
            with self.spool.hold(path.name[: -len(".lock")]) as free:
                if not free:
                    return True
        return False

    def _flush_one(self, key: tuple[int, int]) -> bool:
        rank, slot = key
        with self.spool.hold(f"r{rank:05d}.{slot}") as free:
            ticket = self.spool.ticket(rank, slot) if free else None
            if ticket is None or ticket.state != "pending":
                return False
            self._partner.copy(ticket, rank, slot)
            try:
                flushed = self._write_part(ticket, rank, slot)
            except EngineError as error:
                self._failed(key, ticket, error)
                return False
            self._delay.pop(key, None)
            self.spool.write_ticket(rank, slot, flushed)
            return True

    def _write_part(self, ticket: Ticket, rank: int, slot: int) -> Ticket:
        """Write a slot's image and announce it; returns the ticket with its digests."""
        store, file = self._store(ticket.root), ticket.part.file
        assert file is not None, f"ticket of rank {rank} names no file"
        if ticket.owner:
            hold(store, ticket.folder, ticket.owner)
            self._say(caution=store.caution)
        there = already_there(store, ticket)
        if there is not None:
            return msgspec.structs.replace(ticket, state="flushed", part=there)
        digests = ChunkDigests(CHUNK_BYTES)
        self._say(writing=f"{ticket.folder}/{file.name}", done_bytes=0, total_bytes=file.bytes)

        def passed(view: memoryview) -> None:
            digests.update(view)
            self._say(done_bytes=self.status.done_bytes + len(view))
            self._pace(len(view))

        memory = self._map(rank, slot, file.bytes)
        store.put_image(f"{ticket.folder}/{file.name}", memory, file.bytes, passed)
        entry = msgspec.structs.replace(file, digests=digests.finish())
        part = msgspec.structs.replace(ticket.part, file=entry)
        body = msgspec.json.encode(part)
        store.put(f"{ticket.folder}/{part_name(rank)}", [memoryview(body)])
        store.settle(ticket.folder)
        return msgspec.structs.replace(ticket, state="flushed", part=part)

    def _commit_one(self, job: CommitJob) -> bool:
        store = self._store(job.root)
        try:
            marker = marker_state(store, job.folder)
            parts = None if marker == "whole" else read_parts(store, job)
            if parts is None and marker != "whole":
                if self._all_flushed_here(job):
                    self._write_again(job)
                return False
            hold_for(store, job)
            if parts is not None:
                if marker == "torn":
                    store.remove([f"{job.folder}/{COMMITTED}"])
                commit(store, job.folder, assemble(job.meta, parts, job.world, job.created_s))
        except EngineError as error:
            if error.what != self.status.error:
                logger.warning("step %d is not committed yet: %s", job.meta.step, error.what)
            self._say(error=error.what, failures=self.status.failures + 1)
            if isinstance(error, NotHeld):
                self._write_again(job)
            time.sleep(self.options.retry_first_s)
            return False
        self._say(committed_step=job.meta.step, committed=job.folder, error="", writing="")
        self._tidy(store, job)
        self._keep_newest(job)
        self.spool.write_job(job.folder, None)
        self._supersede(job)
        return True

    def _all_flushed_here(self, job: CommitJob) -> bool:
        """Whether this node wrote every part itself, so that a missing one was lost."""
        found = [ticket for key in self.spool.tickets() if (ticket := self.spool.ticket(*key))]
        states = [ticket.state for ticket in found if ticket.folder == job.folder]
        return len(states) == job.world and set(states) == {"flushed"}

    def _write_again(self, job: CommitJob) -> None:
        """Flush once more what this node still has of a checkpoint that the store lost."""
        self._tidy(self._store(job.root), job)
        for rank, slot in self.spool.tickets():
            with self.spool.hold(f"r{rank:05d}.{slot}") as free:
                ticket = self.spool.ticket(rank, slot) if free else None
                if ticket and ticket.folder == job.folder and ticket.state == "flushed":
                    self.spool.write_ticket(
                        rank, slot, msgspec.structs.replace(ticket, state="pending")
                    )

    def _tidy(self, store: Store, job: CommitJob) -> None:
        """The manifest says all that the parts said; if they cannot be removed, prune will."""
        try:
            store.remove([f"{job.folder}/{part_name(rank)}" for rank in range(job.world)])
        except EngineError as error:
            logger.warning("parts of %s stay: %s", job.folder, error.what)

    def _keep_newest(self, job: CommitJob) -> None:
        """Retention behind training; what cannot be removed now is removed after the next save."""
        try:
            for name in keep_newest(job.root, job.keep):
                logger.info("%s/%s removed: %d newer ones are there", job.root, name, job.keep)
        except EngineError as error:
            logger.warning("older checkpoints stay: %s", error.what)

    def _remove_dropped(self, job: CommitJob) -> None:
        """No rank writes into the folder of a dropped snapshot any more: leave nothing behind."""
        try:
            store = self._store(job.root)
            if not is_of_another(store, job):
                store.remove_folder(job.folder)
        except EngineError as error:
            self._say(error=error.what, failures=self.status.failures + 1)
            return
        self.spool.forget_dropped(job.folder)

    def _supersede(self, done: CommitJob) -> None:
        """Give up older commits that a newer one overtook long ago: a node's part is lost."""
        for job in self.spool.jobs():
            if job.meta.step < done.meta.step and time.time() - job.created_s > OVERTAKEN_S:
                logger.warning("step %d lacks parts and is given up", job.meta.step)
                self.spool.drop_job(job.folder)

    def _failed(self, key: tuple[int, int], ticket: Ticket, error: EngineError) -> None:
        delay = min(
            self._delay.get(key, self.options.retry_first_s / 2) * 2, self.options.retry_most_s
        )
        self._delay[key], self._not_before[key] = delay, time.monotonic() + delay
        self._say(error=error.what, failures=self.status.failures + 1)
        logger.warning(
            "rank %d step %d: %s; next try in %.1f s", key[0], ticket.step, error.what, delay
        )

    def _pace(self, size: int) -> None:
        """Sleep off what was written faster than allowed."""
        if self.options.bytes_per_s:
            with self._lock:
                start = max(self._debt_until, time.monotonic() - 0.1)
                self._debt_until = start + size / self.options.bytes_per_s
                wait = self._debt_until - time.monotonic()
            if wait > 0:
                time.sleep(wait)

    def _say(self, **changes: object) -> None:
        with self._lock:
            self.status = msgspec.structs.replace(self.status, **changes)
            self.spool.write_status(self.status)

    def _map(self, rank: int, slot: int, size: int) -> memoryview:
        """A slot's memory, mapped once: mapping it anew costs as much as tens of MiB written."""
        path = self.spool.image(rank, slot)
        stat = path.stat()
        known = self._maps.get((rank, slot))
        if known is None or known[:2] != (stat.st_ino, stat.st_size):
            memory = memoryview(map_slot(path, size, create=False))
            known = self._maps[rank, slot] = (stat.st_ino, stat.st_size, memory)
        return known[2]

    def _store(self, root: str) -> Store:
        if root not in self.stores:
            self.stores[root] = open_store(root)
        return self.stores[root]


def open_wake(spool: Spool) -> int:
    """The pipe on which trainers call the flusher."""
    path = spool.folder / "wake"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def drain(wake: int) -> None:
    """Forget calls that were heard."""
    try:
        os.read(wake, 4096)
    except BlockingIOError:
        return


def main(arguments: list[str]) -> int:
    """`python -m engine.ckpt.flush SPOOL [OPTIONS-JSON [LOCK]]`; LOCK is a held descriptor."""
    from engine.log import configure

    spool = Spool(Path(arguments[0]))
    options = msgspec.json.decode(arguments[1] if len(arguments) > 1 else "{}", type=FlushOptions)
    log = Path(options.log) if options.log else spool.folder / "flusher.log"
    configure("flusher", file=log, stderr=False)
    lock = int(arguments[2]) if len(arguments) > 2 else spool.take("flusher")
    if lock is None:
        return 0
    os.nice(options.nice)
    Flusher(spool, options).run()
    spool.free_if_closed()
    os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
