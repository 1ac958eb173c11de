"""Print and parse quantities; the only place that formats a number for people.

Bytes are binary (GiB = 2**30), rates are per second, ratios are 0..1 and shown as per cent.
"""

import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_SECONDS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"))
_SPANS = (
    *_SECONDS, (3600.0, 1 / 60, "min"), (86400.0, 1 / 3600, "h"), (math.inf, 1 / 86400, "days"),
)  # fmt: skip


def show_bytes(value: float) -> str:
    """`1610612736` as `1.50 GiB`."""
    size = float(value)
    for unit in _BINARY:
        if abs(size) < 1024 or unit == _BINARY[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable: the last unit always returns")


def show_seconds(value: float) -> str:
    """A duration with the unit that reads best: `350 us`, `6.34 s`, `2 h 05 min`, `3.4 days`."""
    if not math.isfinite(value):
        return str(value)
    for limit, scale, unit in _SECONDS:
        if abs(value) < limit:
            return f"{value * scale:.3g} {unit}"
    if value < 3600:
        return f"{value // 60:.0f} min {value % 60:02.0f} s"
    if value < 86400:
        return f"{value // 3600:.0f} h {value % 3600 // 60:02.0f} min"
    return f"{value / 86400:.1f} days"


def show_span(low: float, high: float) -> str:
    """Two durations in one unit, the one that reads best between them: `6.10-6.79 s`."""
    middle = (low + high) / 2.0
    if not math.isfinite(middle):
        return f"{low}-{high}"
    scale, unit = next((s, u) for limit, s, u in _SPANS if middle < limit)
    digits = 0 if unit in ("ns", "us", "ms") else 2
    return f"{low * scale:.{digits}f}-{high * scale:.{digits}f} {unit}"


def show_count(value: float, unit: str = "") -> str:
    """A decimal quantity: `174.8 G`, `1.98 M tokens/s`."""
    size, suffix = float(value), ""
    for suffix in _DECIMAL:  # noqa: B007 - the suffix is what the loop is for
        if abs(size) < 1000:
            break
        size /= 1000
    digits = f"{size:.0f}" if suffix == "" and size == int(size) else f"{size:.4g}"
    return f"{digits} {suffix}{unit}".rstrip()


def show_number(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_ratio(value: float) -> str:
    """`0.552` as `55.2 %`."""
    return f"{100 * value:.1f} %"


def parse_bytes(text: str) -> int:
    """`80GiB`, `512 MiB`, `1e9` or `64k` as bytes; raises ValueError on anything else."""
    cleaned = text.strip().replace(" ", "").replace("_", "")
    scales: dict[str, int] = {unit: 1 << (10 * power) for power, unit in enumerate(_BINARY)}
    scales |= {"k": 1000, "M": 10**6, "G": 10**9, "T": 10**12}
    scales |= {"kB": 1000, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    unit = next((u for u in sorted(scales, key=len, reverse=True) if cleaned.endswith(u)), "")
    size = float(cleaned[: len(cleaned) - len(unit)]) * scales.get(unit, 1)
    if not 0 <= size < math.inf:  # false for nan too
        raise ValueError(f"{text!r} is no amount of bytes")
    return round(size)
