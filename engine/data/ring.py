"""Memory that a node's loader process shares with its ranks, and the messages about it.

A ring of slots, each with one step's tokens for the replicas on the node. Step s lies in slot
s mod slots. In front lies a header with counters, the number of the step in each slot, and the name
of the file being read, which survives the process that wrote it. Messages are JSON lines over a
Unix socket.
"""

import mmap
import os
import select
import socket
import tempfile
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import MissingError
from engine.spec.base import Noun
from engine.units import show_bytes

_HEADER = 4096
_COUNTERS = 3
_TAGS_AT = 64
_MOST_SLOTS = 64
_NAME_AT = _TAGS_AT + 8 * _MOST_SLOTS
_MOST_MESSAGE = 1 << 20
_SHARE_OF_MEMORY = 4
"""At most a quarter of the node's memory: the kernel would kill somebody rather than refuse."""


class Hello(Noun, frozen=True, kw_only=True, tag="hello"):
    """A rank introduces itself."""

    stream: str
    """`train` or `validation`."""


class Want(Noun, frozen=True, kw_only=True, tag="want"):
    """A rank has copied all it was given and asks for this step; -1: for none now."""

    step: int


class Ready(Noun, frozen=True, kw_only=True, tag="ready"):
    """The step asked for lies in its slot, and stays until the rank wants another."""

    step: int


class Fault(Noun, frozen=True, kw_only=True, tag="fault"):
    """The loader cannot go on."""

    kind: str
    what: str
    remedy: str


class RingShape(Noun, frozen=True, kw_only=True, tag="shape"):
    """What the memory holds; the first answer to a rank, with the memory's descriptor."""

    slots: int
    replicas: tuple[int, ...]
    """Those with ranks on this node, in the order of the memory."""
    micro_batches: int
    micro_batch: int
    seq: int
    dtype: str
    steps_per_epoch: int
    tokens_per_byte: float | None
    is_endless: bool
    """Steps go on after the first epoch: training; validation has only one."""

    @property
    def step_shape(self) -> tuple[int, int, int, int]:
        """Of a slot: replicas, micro-batches, seq + 1, micro-batch."""
        return len(self.replicas), self.micro_batches, self.seq + 1, self.micro_batch

    @property
    def slot_bytes(self) -> int:
        """Size of a slot."""
        return int(np.prod(self.step_shape)) * np.dtype(self.dtype).itemsize

    @property
    def total_bytes(self) -> int:
        """Size of the memory."""
        return _HEADER + self.slots * self.slot_bytes


Message = Hello | Want | Ready | Fault | RingShape

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class Counters(Noun, frozen=True, kw_only=True):
    """What a loader process has done so far."""

    bytes_read: int
    """Of tokens, each counted when it is taken from its file."""
    steps: int
    fill_ns: int
    """Time spent reading and arranging."""


class Ring:
    """The shared memory, mapped."""

    def __init__(self, shape: RingShape, descriptor: int, *, is_writer: bool = False) -> None:
        self.shape, self.descriptor = shape, descriptor
        access = mmap.ACCESS_WRITE if is_writer else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, shape.total_bytes, access=access)
        self._numbers = np.frombuffer(self._map, np.int64, _COUNTERS)
        self._tags = np.frombuffer(self._map, np.int64, shape.slots, offset=_TAGS_AT)
        slots = np.frombuffer(self._map, shape.dtype, offset=_HEADER)
        self._slots: NDArray[Any] = slots.reshape(shape.slots, *shape.step_shape)

    @classmethod
    def create(cls, shape: RingShape) -> "Ring":
        """New memory that vanishes with the last process that has it; MissingError if too large."""
        if not 1 <= shape.slots <= _MOST_SLOTS:
            raise ValueError(f"{shape.slots} slots, not 1 .. {_MOST_SLOTS}")
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE_OF_MEMORY
        if shape.total_bytes > most:
            raise _too_large(shape, f"more than {show_bytes(most)}")
        descriptor = _anonymous_file()
        try:
            if hasattr(os, "posix_fallocate"):  # else a full memory shows when it is written to
                os.posix_fallocate(descriptor, 0, shape.total_bytes)
            else:
                os.ftruncate(descriptor, shape.total_bytes)
        except OSError as error:
            os.close(descriptor)
            raise _too_large(shape, str(error.strerror)) from error
        made = cls(shape, descriptor, is_writer=True)
        made._tags[:] = -1
        return made

    def slot(self, step: int) -> NDArray[Any]:
        """The tokens of a step, `shape.step_shape`; a view."""
        found: NDArray[Any] = self._slots[step % self.shape.slots]
        return found

    def put(self, step: int, tokens: NDArray[Any]) -> None:
        """Fill a step's slot; the slot says that it holds the step when it does."""
        self._tags[step % self.shape.slots] = -1
        self.slot(step)[:] = tokens
        self._tags[step % self.shape.slots] = step

    def copy(self, step: int, place: int) -> NDArray[np.int64] | None:
        """The tokens of a step for a replica, [micro-batches, seq + 1, micro-batch].

        None if the slot does not hold the step, or no longer did when it had been copied.
        """
        tag = step % self.shape.slots
        if self._tags[tag] != step:
            return None
        found: NDArray[np.int64] = self.slot(step)[place].astype(np.int64)
        return found if self._tags[tag] == step else None

    def note_file(self, name: str) -> None:
        """Remember what is about to be read."""
        data = name.encode(errors="replace")[: _HEADER - _NAME_AT - 1]
        self._map[_NAME_AT : _NAME_AT + len(data) + 1] = data + b"\0"

    @property
    def file(self) -> str:
        """What was about to be read last; empty at the beginning."""
        data = self._map[_NAME_AT:_HEADER]
        return data[: data.index(b"\0")].decode(errors="replace")

    def count(self, *, bytes_read: int, fill_ns: int) -> None:
        """Add a step to the counters."""
        self._numbers += (bytes_read, 1, fill_ns)

    @property
    def counters(self) -> Counters:
        """As of now."""
        bytes_read, steps, fill_ns = self._numbers.tolist()
        return Counters(bytes_read=bytes_read, steps=steps, fill_ns=fill_ns)


class Channel:
    """A socket that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""
        self._waiting: list[Message] = []
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def send(self, message: Message, descriptor: int = -1) -> None:
        """Send a message, with a descriptor if one is given."""
        data = _encode(message) + b"\n"
        if descriptor >= 0:
            sent = socket.send_fds(self.socket, [data], [descriptor])
            data = data[sent:]
        self.socket.sendall(data)

    def receive(self, descriptors: list[int] | None = None) -> list[Message]:
        """Messages that have arrived, after waiting for data; EOFError if the other side is gone.

        Descriptors that came along are appended to `descriptors`.
        """
        data, found, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
        if descriptors is not None:
            descriptors += found
        if not data:
            raise EOFError
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > _MOST_MESSAGE:
            raise EOFError
        return [_decode(line) for line in lines]

    def receive_all(self) -> list[Message]:
        """Messages that are already here, without waiting.

        EOFError if there is none and the other side is gone: its last words come first.
        """
        found, self._waiting = self._waiting, []
        while self._poll.poll(0):
            try:
                found += self.receive()
            except EOFError:
                if not found:
                    raise
                break
        return found

    def receive_one(self, descriptors: list[int] | None = None) -> Message:
        """The next message, kept apart from those that arrived with it."""
        while not self._waiting:
            self._waiting += self.receive(descriptors)
        return self._waiting.pop(0)


def _too_large(shape: RingShape, why: str) -> MissingError:
    return MissingError(
        f"cannot share {show_bytes(shape.total_bytes)} of memory for the data of {shape.slots} "
        f"steps: {why}",
        remedy="free memory on the node, or prepare fewer steps ahead",
    )


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("msctl-data", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
