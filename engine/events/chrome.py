"""Export events as a Chrome trace (Perfetto and chrome://tracing open it)."""

from collections.abc import Iterable, Iterator

import msgspec

from engine.events.schema import Event


def chrome_trace(events: Iterable[Event]) -> Iterator[bytes]:
    """The pieces of a trace file: a process per rank, a thread per stream, microseconds."""
    threads: dict[tuple[int, str], int] = {}
    encode = msgspec.json.encode
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    first = True
    for event in events:
        rows = []
        key = (event.rank, event.stream)
        if key not in threads:
            threads[key] = sum(1 for rank, _ in threads if rank == event.rank)
            rows.append(_name("process_name", event.rank, 0, f"rank {event.rank}"))
            rows.append(_name("thread_name", event.rank, threads[key], event.stream))
        rows.append(_row(event, threads[key]))
        for row in rows:
            yield (b"" if first else b",\n") + encode(row)
            first = False
    yield b"\n]}\n"


def _row(event: Event, thread: int) -> dict[str, object]:
    row: dict[str, object] = {
        "name": event.name,
        "pid": event.rank,
        "tid": thread,
        "ts": event.t_ns / 1e3,
        "args": {"step": event.step, **event.attrs},
    }
    if event.kind in ("span", "open"):
        return row | {"ph": "X", "dur": event.dur_ns / 1e3}
    return row | {"ph": "i", "s": "t"}


def _name(what: str, rank: int, thread: int, text: str) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": rank, "tid": thread, "args": {"name": text}}
