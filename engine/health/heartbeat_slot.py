"""A few bytes in shared memory in which a rank says what it does; its node's executor reads them.

Nothing is sent and nothing waits: a rank that is stopped, or that sleeps in a call holding the
interpreter, is seen by a slot that no longer changes. The executor asks for a dump of open spans
through the same slot, because a signal handler would not run in a rank that is stuck.

    0 alive    u64  counts up ten times a second, by a thread of the rank
    8 actions  u64  spans that began or ended
    16 step    i64  the step that runs, -1 before the first
    24 since   f64  when the outermost span began, seconds of CLOCK_MONOTONIC
    32 doing   32 bytes, the outermost and the innermost open span, as `step/wait`
    64 asked   u64  dumps asked for (by the executor); 72 dumped u64  the last one answered
    80 pid     u64
    128        32 steps that ended: i64 step, f32 length_s, f32 own_s
"""

import mmap
import os
import struct
import tempfile
from typing import NamedTuple

from engine.errors import MissingError

SLOT_BYTES = 1024
_RING, _RING_AT = 32, 128
_HEAD = struct.Struct("<QQqd32sQQQ")
_SAID = struct.Struct("<Qqd32s")
_WORK = struct.Struct("<qff")
_U64 = struct.Struct("<Q")
_MOST_SLOTS = 4096


class Work(NamedTuple):
    """A step that ended on a rank: seconds in all, and of its own work."""

    step: int
    length_s: float
    own_s: float


class Seen(NamedTuple):
    """What a slot says."""

    alive: int
    actions: int
    step: int
    since_s: float
    doing: str
    dumped: int
    pid: int
    works: tuple[Work, ...]


class Slots:
    """The slots of a node's ranks. Made by the executor, opened by path in each rank."""

    def __init__(self, fd: int, count: int) -> None:
        self.count = count
        self._fd = fd
        self._map = mmap.mmap(fd, count * SLOT_BYTES)

    @staticmethod
    def make(count: int) -> "Slots":
        """New slots in memory that go away with this process."""
        size = max(1, min(count, _MOST_SLOTS)) * SLOT_BYTES
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("msctl-beats")
        else:
            with tempfile.NamedTemporaryFile(prefix="msctl-beats-") as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return Slots(fd, size // SLOT_BYTES)

    @property
    def path(self) -> str:
        """Where other processes of this user open it, while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @staticmethod
    def open(path: str) -> "Slots":
        """What another process made. MissingError if that process has gone."""
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError as error:
            raise MissingError(
                f"{path}: the heartbeat slots of this node are gone: {error.strerror}",
                remedy="start the ranks by their executor (`msctl train`), or by torchrun",
            ) from error
        return Slots(fd, os.fstat(fd).st_size // SLOT_BYTES)

    def clear(self, index: int) -> None:
        """Forget what an earlier rank said."""
        at = self._at(index)
        self._map[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)

    def tell(self, index: int, *, alive: int, actions: int, step: int, since_s: float,
             doing: str) -> None:  # fmt: skip
        """The rank's side: what it is in the middle of."""
        at = self._at(index)
        _SAID.pack_into(self._map, at + 8, actions, step, since_s, doing.encode()[:32])
        _U64.pack_into(self._map, at + 80, os.getpid())
        _U64.pack_into(self._map, at, alive)

    def tell_work(self, index: int, work: Work) -> None:
        """The rank's side: a step ended."""
        at = self._at(index) + _RING_AT + work.step % _RING * _WORK.size
        _WORK.pack_into(self._map, at, work.step + 1, work.length_s, work.own_s)

    def asked(self, index: int) -> int:
        """The rank's side: dumps asked for so far."""
        return int(_U64.unpack_from(self._map, self._at(index) + 64)[0])

    def answer(self, index: int, number: int) -> None:
        """The rank's side: this dump is written."""
        _U64.pack_into(self._map, self._at(index) + 72, number)

    def ask(self, index: int) -> int:
        """The executor's side: ask for one more dump; returns its number."""
        number = self.asked(index) + 1
        _U64.pack_into(self._map, self._at(index) + 64, number)
        return number

    def see(self, index: int, *, after: int = -1) -> Seen:
        """The executor's side; `works` holds steps later than `after`, in order."""
        at = self._at(index)
        alive, actions, step, since, doing, _, dumped, pid = _HEAD.unpack_from(self._map, at)
        found = []
        for place in range(_RING):
            number, length, own = _WORK.unpack_from(self._map, at + _RING_AT + place * _WORK.size)
            if number and number - 1 > after:
                found.append(Work(number - 1, length, own))
        text = doing.rstrip(b"\0").decode("ascii", "replace")
        return Seen(alive, actions, step, since, text, dumped, pid, tuple(sorted(found)))

    def close(self) -> None:
        """Let go of the memory."""
        self._map.close()
        os.close(self._fd)

    def _at(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise MissingError(
                f"slot {index} of {self.count}: this node has no room for another rank",
                remedy="start no more ranks on a node than its executor was told",
            )
        return index * SLOT_BYTES
