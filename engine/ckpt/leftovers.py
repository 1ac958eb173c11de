"""What a dead run left in a node's memory: the flusher is started for it and waited for.

A snapshot that was taken before a crash is as good as one in the store, so a restarted run either
loads it from memory (engine/ckpt/memory.py) or lets it be written first.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from engine.ckpt.arena import FlushStatus, Spool
from engine.ckpt.arena import spool_folder as default_spool
from engine.ckpt.flush import FlushOptions
from engine.ckpt.parts import read_parts
from engine.ckpt.save import Gather
from engine.ckpt.store import absolute, open_store
from engine.errors import EngineError

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_ROUND_S = 2.0
"""How long a node waits before it tells the others how far it is."""


def start_flusher(spool: Spool, options: FlushOptions) -> None:
    """Start the node's flusher if none lives.

    The lock is taken here and handed to it: however long it takes to start on a busy machine,
    whoever asks again meanwhile finds it taken and starts no second one.
    """
    lock = spool.take("flusher")
    if lock is None:
        return
    try:
        spool.forget_address()
        subprocess.Popen(
            [
                sys.executable, "-m", "engine.ckpt.flush", str(spool.folder),
                msgspec.json.encode(options).decode(), str(lock),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=[lock],
        )  # fmt: skip
    finally:
        os.close(lock)


def finish_leftovers(
    root: str | Path, *, spool: Path | None = None, timeout_s: float = 300.0
) -> FlushStatus | None:
    """Before a restarted run loads: let the flusher commit what the dead run had snapshotted.

    One rank per node calls it. None if nothing was left, else what the flusher says at the end.
    """
    folder = spool or default_spool(absolute(root))
    if not folder.is_dir():
        return None
    left, deadline = Spool(folder), time.monotonic() + timeout_s
    while not _done(left):
        if time.monotonic() > deadline:
            logger.warning("%s still waits: %s", folder, left.status().error)
            break
        time.sleep(_POLL_S)
    return left.status()


def finish_together(spool: Path, *, lead: bool, gather: Gather, timeout_s: float) -> bool:
    """`finish_leftovers` for all nodes of a run; commits that lost a part for good are given up.

    Called by all ranks together; `lead` for one rank of each node. Returns, on every rank, whether
    nothing is left; after `timeout_s` with something left the log says what.
    """
    left = Spool(spool) if lead and spool.is_dir() else None
    deadline = time.monotonic() + timeout_s
    while True:
        until = min(time.monotonic() + _ROUND_S, deadline)
        while left and left.pending() and time.monotonic() < until:
            start_flusher(left, FlushOptions())
            time.sleep(_POLL_S)
        parts_done = not (left and left.pending())
        if all(_flags(gather, parts_done)):
            drop_hopeless(left)
            while left and not _done(left) and time.monotonic() < until:
                time.sleep(_POLL_S)
        late = time.monotonic() > deadline
        mine = msgspec.json.encode((not left or _done(left), late))
        every = [msgspec.json.decode(_bytes(item), type=tuple[bool, bool]) for item in gather(mine)]
        if all(done for done, _ in every):
            return True
        if any(over for _, over in every):
            if left:
                logger.warning("%s still waits: %s", spool, left.status().error)
            return False


def drop_hopeless(spool: Spool | None) -> None:
    """Give up commits whose parts are not all in the store, when nobody will bring them."""
    for job in spool.jobs() if spool else []:
        try:
            complete = read_parts(open_store(job.root), job) is not None
        except EngineError as error:
            logger.warning("step %d waits for its store: %s", job.meta.step, error.what)
            continue
        if not complete:
            logger.warning("step %d lost a part when the run died: given up", job.meta.step)
            spool_drop(spool, job.folder)


def spool_drop(spool: Spool | None, folder: str) -> None:
    """Take back a commit and the snapshots that belong to it."""
    if spool is None:
        return
    for rank, slot in spool.tickets():
        ticket = spool.ticket(rank, slot)
        if ticket and ticket.folder == folder:
            spool.write_ticket(rank, slot, None)
    spool.drop_job(folder)


def forget(spool: Path) -> None:
    """Give a node's memory back: nobody will want what is in it."""
    shutil.rmtree(spool, ignore_errors=True)


def _done(spool: Spool) -> bool:
    if not spool.pending() and not spool.jobs():
        return True
    start_flusher(spool, FlushOptions())
    return False


def _flags(gather: Gather, mine: bool) -> list[bool]:
    return [_bytes(item) == b"1" for item in gather(b"1" if mine else b"0")]


def _bytes(item: object) -> bytes:
    assert isinstance(item, bytes), "gather returns what it was given"
    return item
