"""What the flushers of all nodes tell each other through the store: parts, claims, the marker.

Every rank's flusher announces its file by a small object beside it, `part-<rank>.json`; the node of
rank 0 commits when all are there. The claim says whose folder it is.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from engine.ckpt.arena import CommitJob, Ticket
from engine.ckpt.catalog import CLAIM, read_manifest
from engine.ckpt.manifest import COMMITTED, MARKER_LIMIT, decode_marker
from engine.ckpt.save import CLAIM_LIMIT, Part, claim_note, claimed_by, hold
from engine.ckpt.store import Store
from engine.errors import CheckpointError

PART_LIMIT = 64 << 20
_PART = re.compile(r"part-(\d{5,})\.json")


def read_parts(store: Store, job: CommitJob) -> list[Part] | None:
    """Every rank's part of a checkpoint, None as long as one is missing."""
    present = {int(m[1]) for f in store.files(job.folder) if (m := _PART.fullmatch(f.name))}
    if not set(range(job.world)) <= present:
        return None
    parts = []
    for rank in range(job.world):
        body = store.get(f"{job.folder}/{part_name(rank)}", PART_LIMIT)
        try:
            parts.append(msgspec.json.decode(body or b"", type=Part))
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f"{store.url}/{job.folder}/{part_name(rank)}: {error}",
                remedy="wait for the next save; this step is given up when it commits",
            ) from error
    return parts


def already_there(store: Store, ticket: Ticket) -> Part | None:
    """The rank's part with its digests, if another flusher wrote and announced it already.

    So a file of a committed checkpoint is never touched again.
    """
    rank, file = ticket.part.rank, ticket.part.file
    assert file is not None, f"ticket of rank {rank} names no file"
    if store.get(f"{ticket.folder}/{COMMITTED}", MARKER_LIMIT) is not None:
        for entry in read_manifest(store, ticket.folder).files:
            if entry.name == file.name and entry.bytes == file.bytes:
                return msgspec.structs.replace(ticket.part, file=entry)
    body = store.get(f"{ticket.folder}/{part_name(rank)}", PART_LIMIT)
    try:
        part = msgspec.json.decode(body or b"null", type=Part | None)
    except msgspec.MsgspecError:
        return None
    whole = part is not None and part.file is not None and part.tensors == ticket.part.tensors
    present = {(found.name, found.bytes) for found in store.files(ticket.folder)} if whole else ()
    return part if (file.name, file.bytes) in present else None


def marker_state(store: Store, folder: str) -> Literal["absent", "torn", "whole"]:
    """How far a commit got; only where a store's `create` is not atomic is a marker ever torn."""
    marker = store.get(f"{folder}/{COMMITTED}", MARKER_LIMIT)
    if marker is None:
        return "absent"
    try:
        decode_marker(marker, folder)
    except CheckpointError:
        return "torn"
    return "whole"


def hold_for(store: Store, job: CommitJob) -> None:
    """See that the folder is the job's run's before it commits; claim it if nobody has."""
    if job.owner:
        hold(store, job.folder, job.owner)
    else:
        store.create(f"{job.folder}/{CLAIM}", claim_note(pid=0))


def is_of_another(store: Store, job: CommitJob) -> bool:
    """Whether another run took the folder."""
    note = store.get(f"{job.folder}/{CLAIM}", CLAIM_LIMIT) if job.owner else None
    return note is not None and claimed_by(note) != job.owner


def part_name(rank: int) -> str:
    """The object by which a rank's flusher announces that its file is complete."""
    return f"part-{rank:05d}.json"
