"""How driver and executors talk when they are on different machines: through the job's Redis.

Beats go into one stream and one hash, orders into one queue a node. A thread on each side waits on
the server, so that the loops of driver and executor never do. While the server is away ranks train
on: beats are held back (only the newest counts), orders wait.
"""

import contextlib
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from engine.comm.resp import Client, parse_url
from engine.errors import EngineError, MissingError, TraceError
from engine.health.heartbeat import Heartbeat, encode_beat
from engine.job.keeper import FILE, read_join
from engine.job.lease import Lease, beats_key, nodes_key, orders_key
from engine.job.order import ExecutorTask, Order, decode_order

_SLICE_S = 2.0
_IO_S = 2.0
_KEPT_BEATS = 20_000
_PAUSE_S = 0.1
_LOOK_S = 10.0
_MOST_NODES, _MOST_WAITING, _MOST_ORDERS = 16_384, 1000, 128


class _Bell:
    """A pipe that makes a selector wake up."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def fileno(self) -> int:
        return self._out

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._in, b"!")

    def hush(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._out, 4096)

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)


class RedisExecutorLink:
    """The executor's end. Joins the job: after its first beat the driver knows the node."""

    def __init__(self, task: ExecutorTask) -> None:
        self._task = task
        self._client = Client(parse_url(task.redis), io_s=_IO_S, patience_s=5.0)
        self._client.call(("PING",), patience_s=60.0)
        self._bell, self._end = _Bell(), threading.Event()
        self._orders: deque[Order] = deque()
        self._beat: Heartbeat | None = None
        self._wake = threading.Condition()
        self._driver_s = time.monotonic()
        for target in (self._receive, self._send):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def fileno(self) -> int:
        """For a selector."""
        return self._bell.fileno()

    def orders(self) -> Iterable[tuple[Order, int]] | None:
        """Orders that came; None once nobody can be in charge of this node any more.

        That is when there has been no driver and no work for too long, or the job is elsewhere.
        """
        self._bell.hush()
        if self._end.is_set():
            return None
        found = []
        while self._orders:
            found.append((self._orders.popleft(), -1))
        return found

    def beat(self, beat: Heartbeat) -> None:
        """Hand it to the sending thread; one that was not sent yet gives way, but not its answers.

        Exit codes stand in every beat, works may be lost with a beat, answers must not be.
        """
        with self._wake:
            self._beat = _joined(self._beat, beat)
            self._wake.notify()
        if beat.state == "running":
            self._driver_s = time.monotonic()
        elif time.monotonic() - self._driver_s > self._task.orphan_s:
            self._end.set()
            self._bell.ring()

    def close(self) -> None:
        """Stop both threads."""
        self._end.set()
        with self._wake:
            self._wake.notify()

    def _has_moved(self) -> bool:
        """Whether the run folder names another server: a driver elsewhere has started the job anew.

        It could not reach ours, so nobody who is in charge can tell us. To train on would mean two
        jobs in one run folder.
        """
        try:
            return read_join(Path(self._task.folder) / FILE).redis != self._task.redis
        except MissingError:
            return False  # none yet, or the folder cannot be read now

    def _send(self) -> None:
        look_at = time.monotonic() + _LOOK_S
        while not self._end.is_set():
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_S
                if self._has_moved():
                    self._end.set()
                    self._bell.ring()
            with self._wake:
                while self._beat is None and not self._end.is_set():
                    self._wake.wait()
                beat, self._beat = self._beat, None
            if beat is None:
                return
            data = encode_beat(beat)
            job = self._task.job
            try:
                self._client.call(
                    ("XADD", beats_key(job), "MAXLEN", "~", _KEPT_BEATS, "*", "b", data),
                    ("HSET", nodes_key(job), beat.node, data),
                    patience_s=0.0,
                )
            except EngineError:
                with self._wake:
                    self._beat = _joined(beat, self._beat)
                time.sleep(_PAUSE_S)

    def _receive(self) -> None:
        key = orders_key(self._task.job, self._task.node)
        client = Client(parse_url(self._task.redis), io_s=_IO_S, patience_s=0.0)
        while not self._end.is_set():
            try:
                reply = client.call(("BLPOP", key, _SLICE_S), block_s=_SLICE_S)[0]
            except MissingError:
                time.sleep(_PAUSE_S)
                continue
            if isinstance(reply, list) and isinstance(reply[1], bytes):
                self._driver_s = time.monotonic()
                with contextlib.suppress(TraceError):  # nonsense in a queue of ours is no order
                    self._orders.append(decode_order(reply[1]))
                    self._bell.ring()


def _joined(older: Heartbeat | None, newer: Heartbeat | None) -> Heartbeat | None:
    """The newer of two beats, with the answers of both."""
    if older is None or newer is None:
        return newer or older
    if not older.answers:
        return newer
    return msgspec.structs.replace(newer, answers=older.answers | newer.answers)


class RedisNodeLink:
    """The driver's end for one node."""

    def __init__(self, hub: "BeatHub", node: str) -> None:
        self._hub, self._node = hub, node

    def fileno(self) -> int:
        """The hub's: one bell for all nodes."""
        return self._hub.fileno()

    def messages(self) -> list[bytes] | None:
        """Beats of this node that came."""
        return self._hub.take(self._node)

    def tell(self, order: Order, listen: object = None) -> None:
        """Give an order; NotInCharge if another driver has taken over."""
        self._hub.tell(self._node, order)

    def close(self) -> None:
        """Nothing to let go of."""


class BeatHub:
    """All beats of a job as they come; keeps the lease alive beside it."""

    def __init__(self, url: str, job: str, lease: Lease) -> None:
        self.job, self.lease = job, lease
        self.is_down = False
        """The server does not answer now."""
        self.error: MissingError | None = None
        """The lease is lost."""
        self._client = Client(parse_url(url), io_s=_IO_S, patience_s=0.0)
        self._url = url
        self._boxes: dict[str, list[bytes]] = {}
        self._unsent: deque[tuple[str, Order]] = deque()
        self._is_collecting = False
        self._lock = threading.Lock()
        self._bell, self._end = _Bell(), threading.Event()
        for target in (self._receive, self._keep):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def fileno(self) -> int:
        """For a selector."""
        return self._bell.fileno()

    def names(self) -> list[str]:
        """Nodes that were heard so far."""
        with self._lock:
            return list(self._boxes)

    def take(self, node: str) -> list[bytes]:
        """Beats of one node since the last call."""
        with self._lock:
            found = self._boxes.get(node)
            if not found:
                return []
            self._boxes[node] = []
            return found

    def wait(self, within_s: float) -> None:
        """Return when a beat has come, or after so long."""
        select.select([self], [], [], within_s)
        self._bell.hush()

    def tell(self, node: str, order: Order) -> None:
        """Send an order now, or when the server is back."""
        if self.error is not None:
            raise self.error
        with self._lock:
            self._unsent.append((node, order))
        if not self._is_collecting:
            self._flush()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Orders given in here go out at the end, many in a message."""
        self._is_collecting = True
        try:
            yield
        finally:
            self._is_collecting = False
        self._flush()

    def close(self) -> None:
        """Stop, and let the next driver have the lease at once."""
        self._end.set()
        with contextlib.suppress(EngineError):
            self._flush()
            self.lease.give_back()

    def _flush(self) -> None:
        """Orders in their order; what cannot be sent stays."""
        with self._lock:
            while self._unsent:
                batch = list(itertools.islice(self._unsent, _MOST_ORDERS))
                try:
                    self.lease.tell(batch)
                except MissingError as error:
                    if type(error).__name__ == "NotInCharge":
                        self.error = error
                        raise
                    return
                for _ in batch:
                    self._unsent.popleft()

    def _keep(self) -> None:
        """Renew the lease, and send what had to wait."""
        while not self._end.wait(min(1.0, self.lease.length_s / 4)):
            try:
                self.lease.renew()
                self._flush()
                self.is_down = False
            except MissingError as error:
                if type(error).__name__ == "NotInCharge":
                    self.error = error
                    self._bell.ring()
                    return
                self.is_down = True

    def _receive(self) -> None:
        client = Client(parse_url(self._url), io_s=_IO_S, patience_s=0.0)
        last: bytes | str = ""
        while not self._end.is_set():
            last = last or self._newest(client)
            if not last:
                self.is_down = True
                time.sleep(_PAUSE_S)
                continue
            command = ("XREAD", "COUNT", 512, "BLOCK", int(_SLICE_S * 1000), "STREAMS",
                       beats_key(self.job), last)  # fmt: skip
            try:
                reply = client.call(command, block_s=_SLICE_S)[0]
                self.is_down = False
            except MissingError:
                self.is_down = True
                time.sleep(_PAUSE_S)
                continue
            if not isinstance(reply, list):
                continue
            for stream in reply:
                last = self._sort(stream) or last
            self._bell.ring()

    def _newest(self, client: Client) -> bytes | str:
        """Where the stream ends now; empty if the server does not say."""
        try:
            found = client.call(("XREVRANGE", beats_key(self.job), "+", "-", "COUNT", 1))[0]
        except MissingError:
            return ""
        entry = found[0] if isinstance(found, list) and found else None
        first = entry[0] if isinstance(entry, list) else None
        return first if isinstance(first, bytes) else "0-0"

    def _sort(self, stream: object) -> bytes:
        """Beats of one reply into the boxes of their nodes; returns the last id."""
        last = b""
        if not isinstance(stream, list):
            return last
        for entry in stream[1]:
            last, fields = entry
            data = fields[1] if isinstance(fields, list) and len(fields) == 2 else b""
            name = _name_of(data)
            with self._lock:
                if name not in self._boxes and len(self._boxes) >= _MOST_NODES:
                    continue  # a flood of names, not a job
                box = self._boxes.setdefault(name, [])
                if len(box) < _MOST_WAITING:
                    box.append(data)
        return last


class _Name(msgspec.Struct):
    node: str = "?"


def _name_of(data: bytes) -> str:
    """Whose beat it says it is; it is checked when it is read."""
    try:
        return msgspec.json.decode(data, type=_Name).node[:128]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "?"
