"""Write one rank's events: JSON lines, appended, crash-safe, never in the way of a step.

Spans are written when they close. What is open stays on a stack that `dump_open` writes when a
step passes its deadline: that dump names the culprit of a hang. Lines are kept in memory and
written at step boundaries; beyond `limit` pending lines new ones are dropped and counted.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from engine.events.schema import NAMES, Attr, Event, Kind

_LONGEST_LINE = 1 << 20
"""Bytes of a line that readers take."""


class EventWriter:
    """The events of one rank; `path=None` counts and forgets them (monitoring switched off)."""

    def __init__(self, path: Path | None, rank: int, *, limit: int = 100_000) -> None:
        self.rank = rank
        self.step = -1
        self.dropped = 0
        self._limit = limit
        self._seq = 0
        self._pending: list[Event] = []
        self._open: list[tuple[str, str, int, dict[str, Attr]]] = []
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
            _drop_torn_end(self._file)

    @property
    def active(self) -> bool:
        """Whether events are kept at all."""
        return self._file is not None

    def clock(self, *, world: int, degrees: dict[str, int], index: dict[str, int]) -> None:
        """Write the first line: wall time, and the rank's place on the axes."""
        attrs: dict[str, Attr] = {"wall_ns": time.time_ns(), "world": world, **degrees}
        attrs |= {f"{axis}_index": i for axis, i in index.items()}
        self.instant("clock", attrs)

    @contextmanager
    def span(self, name: str, stream: str = "host", **attrs: Attr) -> Iterator[None]:
        """Record how long the block takes."""
        if self._file is None:
            yield
            return
        start = time.perf_counter_ns()
        self._open.append((name, stream, start, attrs))
        try:
            yield
        finally:
            self._open.pop()
            self.add("span", name, stream, start, time.perf_counter_ns() - start, attrs)

    def enter(self, name: str, stream: str = "host", **attrs: Attr) -> None:
        """Open a span by hand; `leave` closes the innermost one."""
        if self._file is not None:
            self._open.append((name, stream, time.perf_counter_ns(), attrs))

    def leave(self, *, longer_than_ns: int = 0) -> None:
        """Close the innermost span; a shorter one than the limit is forgotten."""
        if self._file is not None:
            name, stream, start, attrs = self._open.pop()
            length = time.perf_counter_ns() - start
            if length >= longer_than_ns:
                self.add("span", name, stream, start, length, attrs)

    def instant(self, name: str, attrs: dict[str, Attr]) -> None:
        """Record that something happened now."""
        self.add("instant", name, "host", time.perf_counter_ns(), 0, attrs)

    def value(self, name: str, value: float) -> None:
        """Record a number."""
        self.add("value", name, "host", time.perf_counter_ns(), 0, {"value": value})

    def add(
        self, kind: Kind, name: str, stream: str, t_ns: int, dur_ns: int, attrs: dict[str, Attr]
    ) -> None:
        """Record an event whose times are known; safe to call from a completion callback."""
        if self._file is None:
            return
        if name not in NAMES:
            raise KeyError(f"event name {name!r} is not in engine/events/schema.py")
        with self._lock:
            if len(self._pending) >= self._limit:
                self.dropped += 1
                return
            event = Event(
                rank=self.rank, seq=self._seq, step=self.step, kind=kind, name=name,
                stream=stream, t_ns=t_ns, dur_ns=dur_ns, attrs=attrs,
            )  # fmt: skip
            self._seq += 1
            self._pending.append(event)

    def flush(self) -> None:
        """Hand pending lines to the operating system."""
        if self._file is None:
            return
        with self._lock:
            pending, self._pending = self._pending, []
            if pending:
                self._file.write(self._encoder.encode_lines(pending))
            self._file.flush()

    def dump_open(self) -> None:
        """Write what this rank is in the middle of, outermost first, and flush."""
        now = time.perf_counter_ns()
        for name, stream, start, attrs in list(self._open):
            self.add("open", name, stream, start, now - start, attrs)
        self.flush()

    def close(self, *, ended: bool) -> None:
        """Flush and close; `ended` marks a rank that finished in order."""
        if self._file is None:
            return
        if self.dropped:
            self.value("dropped", self.dropped)
        if ended:
            self.instant("end", {})
        self.flush()
        self._file.close()
        self._file = None

    def __enter__(self) -> "EventWriter":
        """Use as a context manager: an exception becomes an `error` event."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record why the rank stops."""
        if error is not None:
            self.instant("error", {"what": str(error)[:2000], "type": type(error).__name__})
        self.close(ended=error is None)


def _drop_torn_end(file: BinaryIO) -> None:
    """Cut off the half line that a killed rank left, so that new lines do not grow onto it."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    file.seek(start)
    end = file.read()
    if end and not end.endswith(b"\n"):
        file.truncate(start + end.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
