"""Write a timeline as Perfetto's protobuf: about a third of the Chrome JSON's size.

Field numbers are those of perfetto/trace/trace_packet.proto and track_event.proto. Only what a
timeline needs is written: tracks, slices with a few arguments, flow arrows. Names are interned,
a slice is two packets of some twenty bytes.
"""

import struct
from collections.abc import Mapping
from typing import IO

from engine.events.schema import Attr

_SEQUENCE = 1
_CLEARED, _NEEDS = 1, 2
_BEGIN, _END = 1, 2
_BUFFER = 1 << 20


class PerfettoWriter:
    """A trace file of slices on tracks; times in nanoseconds, ids chosen by the caller."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._names: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._pending = bytearray()
        self._first = True

    def process(self, uuid: int, pid: int, name: str) -> None:
        """Declare a rank's track."""
        process = _number(1, pid + 1) + _text(6, name)
        self._track(_number(1, uuid) + _part(3, process))

    def thread(self, uuid: int, parent: int, name: str) -> None:
        """Declare a lane of a rank."""
        self._track(_number(1, uuid) + _text(2, name) + _number(5, parent))

    def begin(
        self, track: int, t_ns: int, name: str, args: Mapping[str, Attr], *,
        leaves: tuple[int, ...] = (), takes: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """A slice begins; `leaves` and `takes` are the arrows that start and end at it."""
        event = _number(9, _BEGIN) + _number(11, track)
        fresh = b""
        iid, new = _interned(self._names, name)
        event += _number(10, iid)
        fresh += _part(2, _number(1, iid) + _text(2, name)) if new else b""
        for key, value in args.items():
            iid, new = _interned(self._arguments, key)
            fresh += _part(3, _number(1, iid) + _text(2, key)) if new else b""
            event += _part(4, _number(1, iid) + _argument(value))
        event += b"".join(_fixed(47, flow) for flow in leaves)
        event += b"".join(_fixed(48, flow) for flow in takes)
        self._event(t_ns, event, fresh)

    def end(self, track: int, t_ns: int) -> None:
        """The innermost slice of a track ends."""
        self._event(t_ns, _number(9, _END) + _number(11, track), b"")

    def close(self) -> None:
        """Write what is pending; the file stays the caller's."""
        self._file.write(self._pending)
        self._pending.clear()

    def _track(self, descriptor: bytes) -> None:
        self._packet(_part(60, descriptor))

    def _event(self, t_ns: int, event: bytes, fresh: bytes) -> None:
        flags = _NEEDS | (_CLEARED if self._first else 0)
        self._first = False
        packet = _number(8, t_ns) + _number(13, flags) + _part(11, event)
        self._packet(packet + (_part(12, fresh) if fresh else b""))

    def _packet(self, packet: bytes) -> None:
        self._pending += _part(1, packet + _number(10, _SEQUENCE))
        if len(self._pending) > _BUFFER:
            self.close()


def _interned(table: dict[str, int], text: str) -> tuple[int, bool]:
    """The number of a name, and whether it has to be told first."""
    known = table.get(text)
    if known is not None:
        return known, False
    table[text] = len(table) + 1
    return table[text], True


def _argument(value: Attr) -> bytes:
    if isinstance(value, bool):
        return _number(2, int(value))
    if isinstance(value, int):
        return _number(4, value & (1 << 64) - 1)
    if isinstance(value, float):
        return _varint(5 << 3 | 1) + struct.pack("<d", value)
    return _text(6, str(value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _part(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _part(field, value.encode(errors="replace"))
