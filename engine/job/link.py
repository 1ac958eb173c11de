"""How driver and executor talk on one machine: JSON lines over a socket pair.

The same few methods as `link_redis.py`, which serves nodes of their own. When the driver is gone
the socket closes, and the executor ends with its ranks.
"""

import contextlib
import socket
from collections.abc import Iterator

import msgspec

from engine.health.heartbeat import MAX_BYTES, Heartbeat, encode_beat
from engine.job.order import Order, decode_order

_CHUNK = 1 << 16


class Lines:
    """Whole lines out of a stream of bytes; a line beyond the limit is dropped."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Lines that this data completes."""
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > MAX_BYTES:
            self._buffer = b""
        return lines


class ExecutorLink:
    """The executor's end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines = Lines()
        self._fds: list[int] = []

    def fileno(self) -> int:
        """For a selector."""
        return self._control.fileno()

    def orders(self) -> Iterator[tuple[Order, int]] | None:
        """Orders that came, each with a listening socket or -1; None when the driver is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _CHUNK, 4)
        except ConnectionError:
            return None
        self._fds += fds
        if not data:
            return None
        return self._decoded(self._lines.feed(data))

    def _decoded(self, lines: list[bytes]) -> Iterator[tuple[Order, int]]:
        for line in lines:
            order = decode_order(line)
            takes = order.op == "start" and 0 in order.ranks and self._fds
            yield order, self._fds.pop(0) if takes else -1

    def beat(self, beat: Heartbeat) -> None:
        """Tell the driver; a driver that is gone is seen by `orders`."""
        with contextlib.suppress(OSError):
            self._control.sendall(encode_beat(beat) + b"\n")


class DriverLink:
    """The driver's end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines = Lines()

    def fileno(self) -> int:
        """For a selector."""
        return self._control.fileno()

    def messages(self) -> list[bytes] | None:
        """Beats that came, not yet checked; None when the executor is gone."""
        try:
            data = self._control.recv(_CHUNK)
        except ConnectionError:
            return None
        return self._lines.feed(data) if data else None

    def tell(self, order: Order, listen: socket.socket | None = None) -> None:
        """Give an order; one to a dead executor is lost, which its closed socket tells."""
        data = msgspec.json.encode(order) + b"\n"
        with contextlib.suppress(OSError):
            if listen is not None:
                sent = socket.send_fds(self._control, [data], [listen.fileno()])
                data = data[sent:]
            self._control.sendall(data)

    def close(self) -> None:
        """Let go; the executor ends."""
        self._control.close()
