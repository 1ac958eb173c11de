"""Read event files: one per rank, tolerant of a torn last line, loud about anything else."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.errors import TraceError
from engine.events.schema import Event, check

_FILE = re.compile(r"rank-(\d{1,9})\.jsonl")
_LINE_LIMIT = 1 << 20


def event_files(folder: Path) -> dict[int, Path]:
    """Rank -> event file of a run's `events` folder; TraceError if there is none."""
    found = {}
    if folder.is_dir():
        for path in folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match:
                found[int(match[1])] = path
    if not found:
        raise TraceError(
            f"{folder}: no event files (rank-00000.jsonl, ...)",
            remedy="name a run folder whose recipe has monitor.events = true",
        )
    return dict(sorted(found.items()))


def read_events(path: Path) -> Iterator[Event]:
    """Stream the events of one file.

    A last line without an end is what a crash leaves and is skipped; any other line that is not a
    valid event raises TraceError with its number.
    """
    decoder = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
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


def _bad(path: Path, number: int, fault: str) -> TraceError:
    return TraceError(
        f"{path}:{number}: not an event: {fault}",
        remedy="repair or delete the line; `msctl train` writes one JSON object a line",
    )
