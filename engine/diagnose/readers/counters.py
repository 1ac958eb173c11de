"""Bytes of each NIC over time as series on one grid, from CSV or JSON lines.

A row that cannot be used costs that row, not the file: it is left out and counted in `faults`.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.diagnose.readers.files import FileFault, read_limited

_LIMIT = 2 << 30
_MOST = 1e21
"""Largest time or count that is believed: a counter of 64 bits ends at 1.8e19."""
_CELLS = 500_000_000
"""NICs times samples of the largest file that is analysed."""
_GAP = 100_000
"""Samples that a stray point in time is away from the others, at least."""


class Traffic(NamedTuple):
    """Bytes per second [nics, samples], one sample every dt seconds."""

    nics: tuple[str, ...]
    bytes_per_s: NDArray[np.float32]
    dt_s: float
    faults: tuple[str, ...] = ()
    """What of the file was left out, and why."""


def read_traffic(path: Path) -> Traffic:
    """CSV with a header or JSON lines: t, nic, and bytes (a counter) or bytes_per_s.

    The first row that can be read decides between counters and rates; rows that cannot be used
    are left out and named in `faults`.
    """
    data = read_limited(path, _LIMIT)
    rows = _json_rows(data) if data.lstrip()[:1] == b"{" else _csv_rows(data)
    series: dict[str, dict[float, float]] = {}
    column, bad, first = "", 0, ""
    for line, row in rows:
        try:
            nic, t, value, column = _sample(row, column)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            bad, first = bad + 1, first or f"line {line}: {_reason(error)}"
            continue
        series.setdefault(nic, {})[t] = value
    if not series:
        raise FileFault("holds no rows of t, nic and bytes or bytes_per_s")
    faults = [f"rows left out: {bad}, the first in {first}"] if bad else []
    return _regular(series, column == "bytes", faults)


def _sample(row: dict[str, Any], column: str) -> tuple[str, float, float, str]:
    """NIC, seconds, value and the value's column, `column` itself unless that is empty."""
    t = row.get("t")
    time = row["time"] if t is None or t == "" else t
    nic = str(row.get("nic") or row.get("device") or row.get("node") or "")[:80]
    column = column or ("bytes" if row.get("bytes_per_s") is None else "bytes_per_s")
    return nic, _number(time), _number(row[column]), column


def _number(value: Any) -> float:
    number = float(value)
    if not abs(number) <= _MOST:  # NaN compares as false
        raise ValueError(f"{str(value)[:40]!r} is no time and no count of bytes")
    return number


def _reason(error: Exception) -> str:
    return f"no column {error}" if isinstance(error, KeyError) else str(error)[:160]


def _json_rows(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line; a line that is no JSON object is an empty row."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, text in enumerate(data.split(b"\n"), 1):
        if text.strip():
            try:
                yield number, decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield number, {}


def _csv_rows(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line; a line that is no CSV is an empty row."""
    reader = csv.DictReader(io.StringIO(data.decode(errors="replace")))
    while True:
        try:
            row = next(reader)
        except csv.Error:
            row = {}
        except StopIteration:
            return
        yield reader.line_num, row


def _regular(series: dict[str, dict[float, float]], counter: bool, faults: list[str]) -> Traffic:
    """Series on one grid of times; counters become rates, a counter that fell was reset."""
    dt = _interval(series)
    every = np.array(sorted({t for points in series.values() for t in points}))
    times = _without_strays(every, dt, faults)
    begin, end = float(times[0]), float(times[-1])
    if len(times) < 8:
        raise FileFault("holds fewer than eight points in time")
    if ((end - begin) / dt + 1) * len(series) > _CELLS:
        raise FileFault(f"covers more than {_CELLS:,} samples")
    grid = np.arange(begin, end + dt / 2, dt)
    rows, short = {}, []
    for nic, points in series.items():
        t = np.array(sorted(x for x in points if begin <= x <= end))
        v = np.array([points[x] for x in t])
        if counter:
            t, v = t[1:], np.clip(np.diff(v) / np.maximum(np.diff(t), 1e-9), 0, None)
        if len(t):
            rows[nic] = np.interp(grid, t, v).astype(np.float32)
        else:
            short.append(nic)
    if not rows:
        raise FileFault("holds no NIC with two values of its counter")
    if short:
        faults.append(f"NICs left out: {len(short)} with too few values, the first {short[0]!r}")
    return Traffic(tuple(rows), np.stack(list(rows.values())), dt, tuple(faults))


def _interval(series: dict[str, dict[float, float]]) -> float:
    """Seconds between two samples of a NIC, the median; NICs need not be read at one time."""
    steps = np.concatenate([np.diff(np.array(sorted(points))) for points in series.values()])
    if not len(steps):
        raise FileFault("holds fewer than eight points in time of a NIC")
    return float(np.median(steps))


def _without_strays(
    times: NDArray[np.float64], dt: float, faults: list[str]
) -> NDArray[np.float64]:
    """The longest piece of the times without a huge gap; what is outside it goes to faults."""
    pieces = np.split(times, np.flatnonzero(np.diff(times) > _GAP * dt) + 1)
    kept = max(pieces, key=len)
    if len(kept) < len(times):
        stray = next(float(piece[0]) for piece in pieces if piece is not kept)
        faults.append(
            f"points in time left out: {len(times) - len(kept)} far from the others, "
            f"the first t = {stray:g}"
        )
    return kept
