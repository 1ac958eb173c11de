"""Read event files: one per rank, tolerant of a torn last line, loud about anything else."""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.errors import TraceError
from engine.events.schema import OLDER, Event, check

_FILE = re.compile(r"rank-(\d{1,9})\.jsonl")
_LINE_LIMIT = 1 << 20


def event_files(folder: Path) -> dict[int, Path]:
    """Rank -> event file of a run's `events` folder; TraceError if there is none."""
    found = {}
    try:
        for path in folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
    except (FileNotFoundError, NotADirectoryError):
        pass  # told below, with what to do
    except OSError as error:
        raise _shut(folder, error.strerror) from None
    if not found:
        raise TraceError(
            f"{folder}: no event files (rank-00000.jsonl, ...)",
            remedy="name a run folder whose recipe has monitor.events = true",
        )
    return dict(sorted(found.items()))


def parts_of(path: Path) -> list[Path]:
    """The files that hold a rank's events, the older first."""
    older = path.with_name(path.name + OLDER)
    return [older, path] if older.is_file() else [path]


def event_bytes(path: Path, limit: int) -> bytes:
    """A whole file of events; TraceError if it is larger than `limit`, shut, or no file."""
    size = size_of_events(path)
    if size > limit:
        raise TraceError(
            f"{path}: {size} bytes is more than the {limit} that are read at once",
            remedy="cut the file to its newest steps, e.g. with `tail -c 1G`",
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise _shut(path, error.strerror) from None


def event_end(path: Path, most: int) -> bytes:
    """The first line of a file of events, and so much of its end, from the next whole line on."""
    size = size_of_events(path)
    try:
        with path.open("rb") as file:
            first = file.readline(_LINE_LIMIT)
            at = max(len(first), size - most)
            if at > len(first):
                file.seek(at - 1)
                file.readline()  # the rest of a line that is cut
            return first + file.read(most)
    except OSError as error:
        raise _shut(path, error.strerror) from None


def size_of_events(path: Path) -> int:
    """Bytes of a file; TraceError of anything else: opening a pipe would wait for its writer."""
    try:
        found = path.stat()
    except OSError as error:
        raise _shut(path, error.strerror) from None
    if not stat.S_ISREG(found.st_mode):
        raise _shut(path, "no regular file")
    return found.st_size


def read_events(path: Path) -> Iterator[Event]:
    """Stream the events of one rank, given its file.

    A last line without an end is what a crash leaves and is skipped; any other line that is not a
    valid event raises TraceError with its number.
    """
    for part in parts_of(path):
        yield from _read_part(part)


def _read_part(path: Path) -> Iterator[Event]:
    decoder = msgspec.json.Decoder(Event)
    size_of_events(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise _shut(path, error.strerror) from None
    with file:
        number = 0
        while line := file.readline(_LINE_LIMIT):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) < _LINE_LIMIT:
                    return  # torn by a crash
                raise _bad(path, number, f"line longer than {_LINE_LIMIT} bytes")
            try:
                event = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _bad(path, number, str(error)) from None
            fault = check(event)
            if fault:
                raise _bad(path, number, fault)
            yield event


def _shut(path: Path, why: str | None) -> TraceError:
    return TraceError(
        f"{path}: cannot be read: {why}",
        remedy="let this user read the run's events, or name another run",
    )


def _bad(path: Path, number: int, fault: str) -> TraceError:
    return TraceError(
        f"{path}:{number}: not an event: {fault}",
        remedy="repair or delete the line; `msctl train` writes one JSON object a line",
    )
