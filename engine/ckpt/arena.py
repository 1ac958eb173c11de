"""Shared memory between a trainer and the process that writes its checkpoints behind it.

A spool is a folder in memory (`/dev/shm`), one per run and node. For each rank it holds two slots:
an image of the rank's shard file, allocated and touched once at start-up, because first use of
fresh memory is 37 times slower than a copy into used memory. A ticket beside a slot says what its
image is; locks on the slots, which the kernel drops when a process dies, say who is using it. So
either side may die at any moment.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import xxhash

from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.save import Part
from engine.errors import CheckpointError, MissingError
from engine.processes import state_of
from engine.spec.base import Noun
from engine.units import show_bytes

logger = logging.getLogger(__name__)

PAGE = mmap.PAGESIZE
SLOTS = 2
OWNER_S = 20.0
"""Longest wait for a process of an earlier start to leave its rank's place."""
_STILL_S, _LOOK_S = 1.0, 0.02
T = TypeVar("T")


class Ticket(Noun, frozen=True, kw_only=True):
    """What a slot's image is: a snapshot to be flushed, or one that has been."""

    state: Literal["pending", "flushed"]
    root: str
    folder: str
    world: int
    meta: CheckpointMeta
    part: Part
    """With digests once flushed; before that, `file.digests` is empty."""

    owner: str = ""
    """Whose checkpoint it is: the id in the folder's claim. Empty: nobody asks."""

    @property
    def step(self) -> int:
        """The step of the snapshot."""
        return self.meta.step


class CommitJob(Noun, frozen=True, kw_only=True):
    """A checkpoint that rank 0's node commits when all parts are in the store."""

    root: str
    folder: str
    world: int
    meta: CheckpointMeta
    created_s: float
    keep: int = 0
    """Newest checkpoints to keep once this one is there; 0 = all."""

    owner: str = ""


class FlushStatus(Noun, frozen=True, kw_only=True):
    """What the flusher last said of itself."""

    pid: int = 0
    committed_step: int = -1
    committed: str = ""
    writing: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    failures: int = 0
    error: str = ""
    caution: str = ""
    """What the user must know about the store (Store.caution)."""


class Peers(Noun, frozen=True, kw_only=True):
    """What a flusher is told about its partners, in the file `peers.json` of the spool."""

    secret: str
    node: str
    listen: str = "127.0.0.1"
    to: str = ""
    """host:port of the partner that keeps this node's copies; empty: nobody."""
    source: str = ""
    """Name of the node whose copies are kept here; empty: nobody's."""


def spool_folder(root: str | Path, node: int | str = 0, *, base: Path | None = None) -> Path:
    """The spool of a run on a node; a restarted run finds the one it left.

    base  a folder in memory; default: /dev/shm
    """
    key = xxhash.xxh3_64_hexdigest(f"{root}|{node}".encode())
    return (base or Path("/dev/shm")) / f"msctl-{os.getuid()}-{key}"


class Spool:
    """The files of one spool."""

    def __init__(self, folder: Path) -> None:
        with suppress(FileExistsError):  # what is there is judged below
            folder.mkdir(mode=0o700, parents=True)
        stat = folder.lstat()
        if stat.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
            raise MissingError(
                f"{folder} belongs to user {stat.st_uid} or is no folder",
                remedy=f"remove it, or let its owner remove it: rm -r {folder}",
            )
        self.folder = folder

    def image(self, rank: int, slot: int) -> Path:
        """The memory of a slot."""
        return self.folder / f"r{rank:05d}.{slot}.image"

    def tickets(self) -> list[tuple[int, int]]:
        """(rank, slot) of every slot that has a ticket."""
        names = (name.split(".") for name in os.listdir(self.folder) if name.endswith(".ticket"))
        return sorted((int(rank[1:]), int(slot)) for rank, slot, _ in names)

    def ticket(self, rank: int, slot: int) -> Ticket | None:
        """What a slot holds, None if nothing."""
        return self._read(f"r{rank:05d}.{slot}.ticket", Ticket)

    def pending(self) -> list[tuple[int, int]]:
        """(rank, slot) of snapshots to be flushed, oldest step first."""
        found = []
        for rank, slot in self.tickets():
            ticket = self.ticket(rank, slot)
            if ticket and ticket.state == "pending":
                found.append((ticket.step, rank, slot))
        return [(rank, slot) for _, rank, slot in sorted(found)]

    def write_ticket(self, rank: int, slot: int, ticket: Ticket | None) -> None:
        """Replace or remove a slot's ticket, whole or not at all."""
        self._write(f"r{rank:05d}.{slot}.ticket", ticket)

    def jobs(self, kind: Literal["commit", "dropped"] = "commit") -> list[CommitJob]:
        """Commits that wait for their parts, or that were given up; oldest step first."""
        names = [name for name in os.listdir(self.folder) if name.endswith(f".{kind}")]
        found = (self._read(name, CommitJob) for name in names)
        return sorted((job for job in found if job), key=lambda job: (job.meta.step, job.folder))

    def write_job(self, folder: str, job: CommitJob | None) -> None:
        """Add a commit, or take back one that is done."""
        self._write(f"{folder}.commit", job)

    def drop_job(self, folder: str) -> None:
        """Give up a commit: the flusher removes what is in the store."""
        job = self.folder / f"{folder}.commit"
        if job.exists():
            job.rename(job.with_suffix(".dropped"))

    def forget_dropped(self, folder: str) -> None:
        """The flusher has removed what was given up."""
        (self.folder / f"{folder}.dropped").unlink(missing_ok=True)

    def mark_closed(self, rank: int, closed: bool = True) -> None:
        """Whether a rank ended in order, so that nobody will want its snapshots from memory."""
        path = self.folder / f"r{rank:05d}.closed"
        if closed:
            path.touch(mode=0o600)
        else:
            path.unlink(missing_ok=True)

    def forget_ranks_but(self, ranks: Collection[int]) -> None:
        """Free what ranks that are no more on this node left, once it is in the store."""
        gone = {int(path.name[1:].split(".")[0]) for path in self.folder.glob("r*.owner.lock")}
        gone -= set(ranks) | {rank for rank, _ in self.pending()}
        for rank in gone:
            for path in self.folder.glob(f"r{rank:05d}.*"):
                path.unlink(missing_ok=True)

    def free_if_unused(self) -> None:
        """As `free_if_closed`, unless a flusher lives, which will do it itself."""
        with self.hold("flusher") as nobody:
            if nobody and not self.pending() and not self.jobs():
                self.free_if_closed()

    def is_closed(self) -> bool:
        """Whether every rank that was here ended in order."""
        owners = {path.name.split(".")[0] for path in self.folder.glob("r*.owner.lock")}
        closed = {path.name.split(".")[0] for path in self.folder.glob("r*.closed")}
        return bool(owners) and owners <= closed

    def free_if_closed(self) -> None:
        """Give the memory back if every rank ended in order; what a dead rank left stays."""
        if self.is_closed():
            shutil.rmtree(self.folder, ignore_errors=True)

    def peers(self) -> Peers | None:
        """Which nodes exchange copies with this one, None if there are none."""
        return self._read("peers.json", Peers)

    def write_peers(self, peers: Peers) -> None:
        """Tell the flusher who its partners are."""
        if peers != self.peers():
            self._write("peers.json", peers)

    def address(self) -> str:
        """Where the flusher takes copies, empty as long as it does not."""
        return self._read("address", str) or ""

    def write_address(self, address: str) -> None:
        """Say where the flusher takes copies."""
        self._write("address", address)

    def forget_address(self) -> None:
        """The flusher that listened is no more."""
        (self.folder / "address").unlink(missing_ok=True)

    def status(self) -> FlushStatus:
        """What the flusher last said."""
        return self._read("status", FlushStatus) or FlushStatus()

    def write_status(self, status: FlushStatus) -> None:
        """Say how the flusher is doing."""
        self._write("status", status)

    @contextmanager
    def hold(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Lock by name while the block runs; yields whether the lock was had."""
        lock = self.take(name, wait=wait)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def take(self, name: str, *, wait: bool = False) -> int | None:
        """An open descriptor that holds a lock until closed, None if another process has it."""
        fd = os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def take_owner(self, rank: int, *, within_s: float = OWNER_S) -> int:
        """The lock of a rank's place; a process of an earlier start may need a moment to end.

        One that is stopped never ends by itself: it is killed. MissingError names one that stays.
        """
        name = f"r{rank:05d}.owner"
        end, moved_s = time.monotonic() + within_s, time.monotonic()
        while (lock := self.take(name)) is None:
            pid = holder_of(self.folder / f"{name}.lock")
            state, now = state_of(pid), time.monotonic()
            moved_s = moved_s if state == "T" else now
            if now - moved_s > _STILL_S:
                logger.warning("ending process %d of an earlier start: it stands still", pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if now > end:
                raise MissingError(
                    f"process {pid or '?'} (state {state or '?'}) of an earlier start still holds "
                    f"the memory of rank {rank} in {self.folder}",
                    remedy="end that process; in state D the kernel waits for a device or a "
                    "file system: take the node out of the job",
                )
            time.sleep(_LOOK_S)
        return lock

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise CheckpointError(
                f"{self.folder / name}: {error}", remedy=f"stop the run and remove {self.folder}"
            ) from error

    def _write(self, name: str, value: object) -> None:
        path = self.folder / name
        if value is None:
            path.unlink(missing_ok=True)
            return
        draft = path.with_name(f"{name}.{os.getpid()}.draft")
        draft.write_bytes(msgspec.json.encode(value))
        draft.rename(path)


def holder_of(path: Path) -> int:
    """The process that took a lock of `flock` on a file; 0 if that cannot be seen from here."""
    try:
        number = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 4711 00:1a:137 0 EOF
        words = line.split()
        if words[1:2] == ["FLOCK"] and words[5].rpartition(":")[2] == str(number):
            return max(0, int(words[4]))
    return 0


def map_slot(path: Path, size: int, *, create: bool) -> mmap.mmap:
    """A slot's memory, page-aligned, every page present; `create` makes or resizes the file."""
    size = max(PAGE, -(-size // PAGE) * PAGE)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        have = os.fstat(fd).st_size
        if create and have != size:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)
        elif have < size:
            raise CheckpointError(
                f"{path}: {have} bytes instead of {size}",
                remedy=f"stop the run, remove {path.parent} and start again",
            )
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(fd)


def check_room(folder: Path, wanted: int) -> None:
    """Fail early if the arenas of this node do not fit into memory; old slots count as room."""
    stat = os.statvfs(folder)
    room = stat.f_bavail * stat.f_frsize
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    room = min(room, int(lines["MemAvailable"].split()[0]) * 1024)
    room += sum(path.stat().st_size for path in folder.glob("*.image"))
    if wanted > room:
        raise MissingError(
            f"checkpoint arenas need {show_bytes(wanted)} of memory in {folder}, "
            f"{show_bytes(room)} are free",
            remedy="use one slot instead of two, spread the state over more nodes, or save in step",
        )
