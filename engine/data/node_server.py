"""The one process of a node that reads training data, for all ranks of the node (paper 3.4).

`NodeServer` fills the ring with the steps its ranks will want next, while they train; a rank that
asks for a step copies it from there (`node_loader.py`). A step is read when all ranks have said
where they stand, once, and its slot is not reused before all have copied it.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.data.dataset import Samples
from engine.data.order import SampleOrder
from engine.data.ring import Channel, Fault, Hello, Ready, Ring, Want
from engine.data.share import Share
from engine.errors import EngineError

I64 = NDArray[np.int64]

_PATIENCE_S = 5.0
"""For a rank that has connected to say who it is."""


class Feed:
    """Reads the steps of one stream into a ring: each sample that the node needs, once."""

    def __init__(
        self, samples: Samples, order: SampleOrder, shares: Sequence[Share], ring: Ring
    ) -> None:
        self._samples, self._order, self._shares = samples, order, shares
        self.ring = ring
        self._file = ""

    def fill(self, step: int) -> None:
        """Put a step into its slot."""
        start, before = time.perf_counter_ns(), self._samples.bytes_read
        positions = np.stack([share.positions(step) for share in self._shares])
        _, numbers = self._order.at(positions.ravel())
        files = self._samples.files_of(numbers)
        rows = np.empty((len(numbers), self.ring.shape.seq + 1), dtype=self.ring.shape.dtype)
        begin = 0
        for end in range(1, len(numbers) + 1):
            if end == len(numbers) or files[end] != files[begin]:
                if files[begin] != self._file:
                    self._file = files[begin]
                    self.ring.note_file(self._file)
                rows[begin:end] = self._samples.samples(numbers[begin:end])
                begin = end
        self.ring.put(step, rows.reshape(*positions.shape, -1).swapaxes(2, 3))
        self.ring.count(
            bytes_read=self._samples.bytes_read - before,
            fill_ns=time.perf_counter_ns() - start,
        )


class _Client:
    """A rank's connection to one stream."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.stream: str | None = None
        self.step: int | None = None
        """What it wants, or was given and may still be copying."""
        self.is_served = False


class NodeServer:
    """Answers the ranks of a node until the last has left."""

    def __init__(self, feeds: dict[str, Feed], listener: socket.socket, *, ranks: int) -> None:
        """`ranks` of them will connect to each stream."""
        self._feeds, self._listener, self._ranks = feeds, listener, ranks
        self._clients: list[_Client] = []
        self._filled: dict[str, dict[int, int]] = {name: {} for name in feeds}
        """Stream -> slot -> the step in it."""
        self._seen = dict.fromkeys(feeds, 0)
        self._selector = selectors.DefaultSelector()
        self._is_alone = False
        """The parent has gone."""

    def serve(self, parent: int = -1) -> None:
        """Until every rank has connected and gone again, or the pipe `parent` was closed.

        An error is told to all ranks, then raised.
        """
        self._selector.register(self._listener, selectors.EVENT_READ)
        if parent >= 0:
            self._selector.register(parent, selectors.EVENT_READ)
        try:
            while not self._is_over() and not self._is_alone:
                self.turn(block=True)
        except Exception as error:
            self.tell(error)
            raise
        finally:
            self._selector.close()

    def turn(self, *, block: bool) -> bool:
        """Fill one slot if there is one to fill, then hear all who speak; True if it did either.

        With `block`, waits for somebody to speak where there is nothing to fill.
        """
        is_busy = self._work()
        spoken = self._selector.select(None if block and not is_busy else 0)
        for key, _ in spoken:
            if key.data is not None:
                self._hear(key.data)
            elif key.fileobj is self._listener:
                self.attach(self._listener.accept()[0])
            else:
                self._is_alone = True
        return is_busy or bool(spoken)

    def _is_over(self) -> bool:
        came = max(self._seen.values())
        return not self._clients and came >= self._ranks

    def attach(self, connection: socket.socket) -> None:
        """Listen to one more connection."""
        client = _Client(Channel(connection))
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _hear(self, client: _Client) -> None:
        """Take in what a rank says; one that is gone is forgotten."""
        try:
            for message in client.channel.receive():
                self._take(client, message)
        except (EOFError, OSError, ValueError):
            self._selector.unregister(client.channel.socket)
            client.channel.socket.close()
            self._clients.remove(client)

    def _take(self, client: _Client, message: object) -> None:
        if isinstance(message, Hello) and message.stream in self._feeds:
            client.stream = message.stream
            self._seen[message.stream] += 1
            ring = self._feeds[message.stream].ring
            client.channel.send(ring.shape, ring.descriptor)
        elif isinstance(message, Want) and client.stream is not None:
            client.step = message.step if message.step >= 0 else None
            client.is_served = False
        else:
            raise ValueError(f"unexpected {message}")

    def _work(self) -> bool:
        """Answer who can be answered and fill one slot; False if there is nothing to do."""
        for stream, feed in self._feeds.items():
            clients = [c for c in self._clients if c.stream == stream]
            self._answer(clients, self._filled[stream])
            step = self._next(stream, clients)
            if step is not None:
                slot = step % feed.ring.shape.slots
                self._filled[stream].pop(slot, None)
                feed.fill(step)
                self._filled[stream][slot] = step
                self._answer(clients, self._filled[stream])
                return True
        return False

    def _answer(self, clients: list[_Client], filled: dict[int, int]) -> None:
        steps = set(filled.values())
        for client in clients:
            if client.step in steps and not client.is_served:
                client.is_served = True
                with contextlib.suppress(OSError):  # gone: heard of in a moment
                    client.channel.send(Ready(step=client.step))

    def _next(self, stream: str, clients: list[_Client]) -> int | None:
        """The next step to read, if its slot is free.

        Steps are read from the one that the slowest rank stands at, as many ahead as there are
        slots, and not before all ranks have asked, so that none is read twice.
        """
        wanted = [c.step for c in clients if c.step is not None]
        if self._seen[stream] < self._ranks or len(wanted) < len(clients) or not wanted:
            return None
        filled, shape = self._filled[stream], self._feeds[stream].ring.shape
        copying = {c.step for c in clients if c.is_served}
        end = min(wanted) + shape.slots
        if not shape.is_endless:
            end = min(end, shape.steps_per_epoch)
        for step in range(min(wanted), end):
            held = filled.get(step % shape.slots)
            if held == step:
                continue
            return None if held in copying else step
        return None

    def tell(self, error: Exception) -> None:
        """Give every rank the error, with the file that was being read."""
        for client in self._clients:
            file = self._feeds[client.stream].ring.file if client.stream else ""
            with contextlib.suppress(OSError):
                client.channel.send(_fault(error, file))


def refuse(listener: socket.socket, error: Exception, *, ranks: int, parent: int = -1) -> None:
    """Tell an error to every rank that connects, until all have or the pipe `parent` was closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        if parent >= 0:
            selector.register(parent, selectors.EVENT_READ)
        while ranks:
            if any(key.fileobj == parent for key, _ in selector.select()):
                return
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError, EOFError, ValueError):
                connection.settimeout(_PATIENCE_S)
                channel = Channel(connection)
                channel.receive()
                channel.send(_fault(error, ""))
            ranks -= 1


def _fault(error: Exception, file: str) -> Fault:
    """An error as a message, with the file that was being read."""
    kind = type(error).__name__
    if isinstance(error, EngineError):
        return Fault(kind=kind, what=error.what, remedy=error.remedy)
    what = f"the node's data loader failed: {kind}: {error}"
    what += f" (reading {file})" if file else ""
    remedy = f"check {file or 'the data'}, then start again from the last checkpoint"
    return Fault(kind=kind, what=what, remedy=remedy)
