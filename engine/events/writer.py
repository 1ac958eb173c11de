"""Write one rank's events: JSON lines, appended, crash-safe, never in the way of a step.

Spans are written when they close. What is open stays on a stack that `dump_open` writes when a
step passes its deadline: that dump names the culprit of a hang. Lines are kept in memory and
written at step boundaries; beyond `limit` pending lines new ones are dropped and counted. What a
long run of many ranks writes is bounded twice: most steps may be summed up (`sums.py`), and of a
file that has grown too large only the newer half stays.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from engine.events.schema import ASIDE, NAMES, OLDER, Attr, Event, Kind
from engine.events.sums import SUMMED, Sums

_LONGEST_LINE = 1 << 20
"""Bytes of a line that readers take."""
_OWN = frozenset({"forward", "backward", "backward_input", "backward_weight", "optimizer"})
"""Spans whose time, less that of the spans inside them, is a rank's own work."""
_STEPS_KEPT = 256
_FIRST_STEPS = 3
"""Steps of a start that are kept whole in any case."""


class StepWork(NamedTuple):
    """A step that ended: how long it took and how much of that was this rank's own work."""

    step: int
    length_s: float
    own_s: float


class _Open:
    """A span that runs; `inside_ns` is the time of spans that closed within it.

    `told_ns` is that of those among them, and below them, that were long enough to be kept.
    """

    __slots__ = ("attrs", "inside_ns", "name", "start", "stream", "told_ns")

    def __init__(self, name: str, stream: str, start: int, attrs: dict[str, Attr]) -> None:
        self.name, self.stream, self.start, self.attrs = name, stream, start, attrs
        self.inside_ns = self.told_ns = 0


class EventWriter:
    """The events of one rank; `path=None` forgets them (monitoring switched off).

    With `watched`, what runs is known to other threads even then: `actions` counts spans that began
    or ended, `doing` names those that are open, `works` holds the steps that ended lately.
    Every `every`-th step is kept span by span, the others are summed up; the file and its older
    part together stay below `most_bytes`, if that is not 0.
    """

    def __init__(
        self, path: Path | None, rank: int, *, limit: int = 100_000, watched: bool = False,
        every: int = 1, most_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.rank = rank
        self._path, self._every, self._most_bytes = path, every, most_bytes
        self._clock: dict[str, Attr] = {}
        self._whole = range(0)
        """Steps of this start that are kept whole in any case."""
        self._sums: Sums | None = None
        """Of the step that runs, if it is to be summed up."""
        self.step = -1
        self.dropped = 0
        self.actions = 0
        self.works: deque[StepWork] = deque(maxlen=_STEPS_KEPT)
        self._own_ns = 0
        self._tracks = path is not None or watched
        self._limit = limit
        self._seq = 0
        self._pending: list[Event] = []
        self._open: list[_Open] = []
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._file: FileIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
            _drop_torn_end(self._file)

    @property
    def active(self) -> bool:
        """Whether events are kept at all."""
        return self._file is not None

    def clock(self, *, world: int, degrees: dict[str, int], index: dict[str, int]) -> None:
        """Write the first line: wall time, and the rank's place on the axes."""
        attrs: dict[str, Attr] = {"wall_ns": time.time_ns(), "world": world, **degrees}
        attrs |= {f"{axis}_index": i for axis, i in index.items()}
        self._clock = attrs
        self.instant("clock", attrs)

    @property
    def doing(self) -> tuple[str, ...]:
        """Names of the open spans, outermost first; may be asked by any thread."""
        return tuple(one.name for one in list(self._open))

    @property
    def doing_since(self) -> tuple[str, float]:
        """The outermost and innermost open span as `step/wait`, and when the outermost began.

        Seconds of the monotonic clock; empty and 0 if none is open.
        """
        spans = list(self._open)
        if not spans:
            return "", 0.0
        names = spans[0].name if len(spans) == 1 else f"{spans[0].name}/{spans[-1].name}"
        return names, spans[0].start / 1e9

    @contextmanager
    def span(self, name: str, stream: str = "host", **attrs: Attr) -> Iterator[None]:
        """Record how long the block takes."""
        if not self._tracks:
            yield
            return
        self._begin(name, stream, attrs)
        try:
            yield
        finally:
            self._end(0)

    def enter(self, name: str, stream: str = "host", **attrs: Attr) -> None:
        """Open a span by hand; `leave` closes the innermost one."""
        if self._tracks:
            self._begin(name, stream, attrs)

    def leave(self, *, longer_than_ns: int = 0) -> None:
        """Close the innermost span; a shorter one than the limit is forgotten."""
        if self._tracks:
            self._end(longer_than_ns)

    def _is_whole(self) -> bool:
        """Whether every span of the present step is to be kept."""
        if self._every <= 1 or self.step < 0:
            return True
        if not self._whole:
            self._whole = range(self.step, self.step + _FIRST_STEPS)
        return self.step in self._whole or self.step % self._every == 0

    def _begin(self, name: str, stream: str, attrs: dict[str, Attr]) -> None:
        self.actions += 1
        if not self._open:
            self._sums = None if self._is_whole() else Sums()
        self._open.append(_Open(name, stream, time.perf_counter_ns(), attrs))

    def _end(self, longer_than_ns: int) -> None:
        self.actions += 1
        one = self._open.pop()
        length = time.perf_counter_ns() - one.start
        if self._open:
            self._open[-1].inside_ns += length
        if one.name in _OWN:
            self._own_ns += length - one.inside_ns
        elif one.name == "step":
            self.works.append(StepWork(self.step, length / 1e9, self._own_ns / 1e9))
            self._own_ns = 0
        elif one.name in ASIDE:
            self._own_ns = 0
        self._keep(one, length, is_kept=length >= longer_than_ns)

    def _keep(self, one: _Open, length: int, *, is_kept: bool) -> None:
        """Write a span that ended, or let it count in the sums of its step."""
        if self._open:
            self._open[-1].told_ns += length if is_kept else one.told_ns
        if not is_kept:
            return
        if self._sums is None:
            self._add("span", one.name, one.stream, one.start, length, one.attrs)
        elif self._open:
            self._add_up(self._sums, one.name, length - one.told_ns, one.attrs)
        else:
            if one.name == "step":
                for name, start, own, attrs in self._sums.spans(one.start):
                    self._add("span", name, "host", start, own, attrs)
                one.attrs = {**one.attrs, SUMMED: True}
            self._add("span", one.name, one.stream, one.start, length, one.attrs)

    def _add_up(self, sums: Sums, name: str, own_ns: int, attrs: dict[str, Attr]) -> None:
        """What runs within a validation is no training work, whatever it is called."""
        for outer in self._open:
            if outer.name in ASIDE:
                name, attrs = outer.name, {}
        sums.add(name, own_ns, attrs)

    def instant(self, name: str, attrs: dict[str, Attr]) -> None:
        """Record that something happened now."""
        self._add("instant", name, "host", time.perf_counter_ns(), 0, attrs)

    def value(self, name: str, value: float) -> None:
        """Record a number."""
        self._add("value", name, "host", time.perf_counter_ns(), 0, {"value": value})

    def add(
        self, kind: Kind, name: str, stream: str, t_ns: int, dur_ns: int, attrs: dict[str, Attr]
    ) -> None:
        """Record an event whose times are known; safe to call from a completion callback."""
        if kind == "span" and self._sums is not None:
            if name == "gc" and self._open:  # it ran in the thread of the step, inside a span
                self._open[-1].told_ns += dur_ns
                self._add_up(self._sums, name, dur_ns, attrs)
                return
            if name != "gc":
                return  # a lane beside the step: what it costs shows as a wait
        self._add(kind, name, stream, t_ns, dur_ns, attrs)

    def _add(
        self, kind: Kind, name: str, stream: str, t_ns: int, dur_ns: int, attrs: dict[str, Attr]
    ) -> None:
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
            try:
                if pending and not self._has_written(self._encoder.encode_lines(pending)):
                    self.dropped += len(pending)
                if self._most_bytes and self._file.tell() > self._most_bytes // 2:
                    self._begin_file()
            except OSError:  # what is on the disk stays readable, and the step goes on
                self.dropped += len(pending)

    def _has_written(self, data: bytes) -> bool:
        """Whether all of it is in the file; nothing is, if there was no room for all."""
        assert self._file is not None, "a writer that is active has a file"
        size = self._file.seek(0, os.SEEK_END)
        try:
            done = self._file.write(data)
        except OSError:
            done = 0
        if done < len(data):
            self._file.truncate(size)
        return done == len(data)

    def _begin_file(self) -> None:
        """Put a file that is full in the place of the older one."""
        assert self._path is not None, "a file has a path"
        assert self._file is not None, "a writer that is active has a file"
        os.replace(self._path, self._path.with_name(self._path.name + OLDER))
        fresh = self._path.open("ab+", buffering=0)
        self._file.close()
        self._file = fresh
        if self._clock:
            now = {**self._clock, "wall_ns": time.time_ns()}
            first = Event(rank=self.rank, seq=self._seq, kind="instant", name="clock",
                          t_ns=time.perf_counter_ns(), attrs=now)  # fmt: skip
            self._seq += 1
            self._has_written(self._encoder.encode(first) + b"\n")

    def dump_open(self) -> None:
        """Write what this rank is in the middle of, outermost first, and flush."""
        now = time.perf_counter_ns()
        for one in list(self._open):
            self._add("open", one.name, one.stream, one.start, now - one.start, one.attrs)
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


def _drop_torn_end(file: FileIO) -> None:
    """Cut off the half line that a killed rank left, so that new lines do not grow onto it."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    file.seek(start)
    end = file.read()
    if end and not end.endswith(b"\n"):
        file.truncate(start + end.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
