"""Lines of event files as a reduction needs them: decoded fast, the ends of large files.

Measured on 615,000 events: msgspec beats DuckDB's JSON reader several times over.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from engine.errors import TraceError
from engine.events.reader import event_bytes, event_end, parts_of, size_of_events
from engine.events.schema import VERSION, Attr

FILE_LIMIT = 1 << 31
_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""What fits into an array; JSON itself has no limit."""


class Line(msgspec.Struct, gc=False):
    """The fields of an event that the reduction needs; others are skipped unread."""

    kind: str
    name: str
    t_ns: _Whole
    rank: _Whole = -1
    step: _Whole = -1
    stream: str = "host"
    dur_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    attrs: dict[str, Attr] = {}
    v: int = VERSION


def whole(value: Attr) -> int:
    """A whole number out of an event's attributes, 0 where it is none."""
    number = int(value) if isinstance(value, int | float) else 0
    return number if abs(number) <= 1 << 62 else 0


class Decoded(NamedTuple):
    """What a rank wrote, the older part of its file first."""

    lines: list[Line]
    bad: int
    """Lines that are no events."""
    older: int
    """How many of the good ones are of the older part."""
    is_cut: bool = False
    """Whether older events were left out: all of them but the first line."""


def decode_lines(path: Path, most: int = FILE_LIMIT) -> Decoded:
    """Lines of a rank, given its file; one without an end is what a crash leaves.

    most  bytes to read: of more than that the first line and the newest whole steps
    """
    parts = parts_of(path)
    sizes = [size_of_events(part) for part in parts]
    if sum(sizes) > most:
        return _decode_end(parts, most - sizes[-1], most)
    lines: list[Line] = []
    bad = older = 0
    for part in parts:
        older = len(lines)
        found, wrong = _decode(part, event_bytes(part, FILE_LIMIT))
        lines += found
        bad += wrong
    return Decoded(lines, bad, older)


def _decode_end(parts: list[Path], left: int, most: int) -> Decoded:
    """The end of the part that is cut, and all after it.

    left  bytes beside the newest part; above 0 that is read whole and the older one is cut. What is
          cut in the middle of a step begins with the next one.
    """
    cut = parts[0] if left > 0 else parts[-1]
    lines, bad = _decode(cut, event_end(cut, left if left > 0 else most))
    torn = lines[1].step if len(lines) > 1 else -1
    kept = [line for line in lines if line.step != torn or line.kind != "span"]
    lines = kept if len(kept) > 1 else lines
    if left > 0:
        more, worse = _decode(parts[-1], event_bytes(parts[-1], FILE_LIMIT))
        lines, bad = lines + more, bad + worse
    return Decoded(lines, bad, 0, is_cut=True)


def _decode(path: Path, data: bytes) -> tuple[list[Line], int]:
    end = data.rfind(b"\n") + 1
    decoder = msgspec.json.Decoder(Line)
    try:
        return decoder.decode_lines(data[:end]), 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    lines: list[Line] = []
    number = 0
    for number, text in enumerate(data[:end].split(b"\n")[:-1], 1):
        try:
            lines.append(decoder.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == 1:
                raise TraceError(
                    f"{path}:{number}: not an event: {error}",
                    remedy="delete the file, or name the run folder that wrote it",
                ) from None
    return lines, number - len(lines)
