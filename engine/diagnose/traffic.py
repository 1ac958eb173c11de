"""Traffic of a healthy job has the step's period: find the NIC that leaves it (paper 5.1).

Each NIC's byte series is compared with the median NIC, window by window of two periods: its
shape (correlation) and its volume. Limits come from the first windows of the same job. What all
NICs do together (a common slow-down, a stop of all) shows in the period and in the median
itself.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from engine.diagnose.categories import next_step
from engine.diagnose.finding import Evidence, Finding
from engine.diagnose.readers.counters import Traffic
from engine.units import show_ratio, show_seconds

_SHAPE_Z = 12.0
_VOLUME_Z = 10.0
_OVERLAP = 8
"""Windows begin so many times in the length of one."""
_LEARN = 6
"""Windows at the start that tell what is normal."""
_GROWN, _GROWN_Z = 0.02, 6.0
"""A period that grew by this share, and by so many of its deviations, is worth an alarm, ..."""
_LASTS = 1.2
"""... if it stays so for so many of these periods: after a single pause it does for about one."""
_LAGS = (0.8, 1.6)
"""Where the next step is looked for, in periods; what is further away is a pause or a stop."""
_ALIKE = 0.5
_LOOK = 0.4
"""Of a period: what is looked for in the step before."""
_HOPS = 12
"""Looks in a period."""


class Alarm(NamedTuple):
    """A window in which a NIC (None: all of them) is not like the others or not like before."""

    nic: str | None
    at_s: float
    what: str


def period_s(total: NDArray[np.float64], dt_s: float) -> float:
    """The period of a series by its autocorrelation, 0 if it has none."""
    x = total - total.mean()
    if not x.any():
        return 0.0
    spectrum = np.fft.rfft(x, 2 * len(x))
    auto = np.fft.irfft(spectrum * np.conj(spectrum))[: len(x) // 2]
    auto = auto / auto[0]
    below = np.flatnonzero(auto < 0.2)
    if not len(below):
        return 0.0
    start = int(below[0])
    peak = start + int(np.argmax(auto[start:]))
    return peak * dt_s if auto[peak] > 0.2 else 0.0


def find_alarms(traffic: Traffic) -> list[Alarm]:
    """Every window in which a NIC leaves the others, and where all of them stop or slow down."""
    x = traffic.bytes_per_s
    first = x[:, : max(64, x.shape[1] // 5)].mean(axis=0).astype(np.float64)
    period = period_s(first, traffic.dt_s)
    if not period or x.shape[1] * traffic.dt_s < 8 * period:
        return []
    width = max(8, round(2 * period / traffic.dt_s))
    hop = max(1, width // _OVERLAP)
    starts = range(0, x.shape[1] - width + 1, hop)
    shape, volume, middle = _profiles(x, starts, width)
    usual = float(np.median(middle[: min(_LEARN * _OVERLAP, max(_OVERLAP, len(middle) // 3))]))
    whole = _of_all(traffic, period, usual)
    stop = min((a.at_s for a in whole if "stopped" in a.what), default=float("inf"))
    found = _of_nics(traffic, starts, width, shape, volume)
    quiet = stop - period  # windows that the stop has entered tell nothing
    alarms = [a for a in found if a.at_s <= quiet]
    return sorted(alarms + whole, key=lambda a: a.at_s)


def _profiles(
    x: NDArray[np.float32], starts: range, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Correlation with and volume over the median NIC [windows, nics]; the median's volume."""
    shape, volume, middle = [], [], []
    for start in starts:
        part = x[:, start : start + width].astype(np.float64)
        median = np.median(part, axis=0)
        centred = part - part.mean(axis=1, keepdims=True)
        reference = median - median.mean()
        norm = np.linalg.norm(centred, axis=1) * np.linalg.norm(reference)
        shape.append(np.where(norm > 0, centred @ reference / np.maximum(norm, 1e-9), 0.0))
        volume.append(part.mean(axis=1) / max(float(median.mean()), 1e-9))
        middle.append(float(median.mean()))
    return np.array(shape), np.array(volume), np.array(middle)


def _of_nics(
    traffic: Traffic,
    starts: range,
    width: int,
    shape: NDArray[np.float64],
    volume: NDArray[np.float64],
) -> list[Alarm]:
    learn = min(_LEARN * _OVERLAP, max(_OVERLAP, len(shape) // 3))
    loss = np.median(shape, axis=1, keepdims=True) - shape
    loss = loss - np.median(loss[:learn], axis=0, keepdims=True)  # a NIC's own constant lag
    loss_limit = _SHAPE_Z * _spreads(loss[:learn]) + 0.01
    level = volume / np.maximum(np.median(volume, axis=1, keepdims=True), 1e-9)
    own = np.median(level[:learn], axis=0, keepdims=True)
    off = np.abs(level / np.maximum(own, 1e-9) - 1)
    off_limit = _VOLUME_Z * _spreads((level / np.maximum(own, 1e-9) - 1)[:learn]) + 0.01
    alarms = []
    for window, nic in zip(*np.nonzero((loss > loss_limit) | (off > off_limit)), strict=True):
        at = (starts[window] + width) * traffic.dt_s
        by_volume = off[window, nic] > off_limit[nic]
        amount = show_ratio(float(level[window, nic]))
        what = f"carries {amount} of the median's bytes" if by_volume else "is out of step"
        alarms.append(Alarm(traffic.nics[nic], at, what))
    return alarms


def _of_all(traffic: Traffic, period: float, usual: float) -> list[Alarm]:
    """A stop of all NICs, and a period that grew and stays so."""
    total = traffic.bytes_per_s.mean(axis=0).astype(np.float64)
    dt = traffic.dt_s
    width = max(4, round(period / dt))
    moving = np.convolve(total, np.ones(width) / width, "valid")
    stopped = np.flatnonzero(moving < 0.2 * usual)
    if len(stopped):
        return [Alarm(None, (int(stopped[0]) + width) * dt, "all traffic stopped")]
    hop = max(1, width // _HOPS)
    ends, lags = _local_periods(total, width, hop)
    early = lags[: max(_HOPS, len(lags) // 5)]
    early = early[np.isfinite(early)]
    if not len(early):
        return []
    before = float(np.median(early))
    spread = 1.4826 * float(np.median(np.abs(early - before)))
    limit = before + max(_GROWN * before, _GROWN_Z * spread)
    row = 0
    for index, lag in enumerate(lags):
        row = row + 1 if lag > limit else 0
        if row * hop >= _LASTS * lag:
            now = float(np.median(lags[index - row // 2 : index + 1]))
            grew = f"from {show_seconds(before * dt)} to {show_seconds(now * dt)}"
            return [Alarm(None, float(ends[index]) * dt, f"the period grew {grew}")]
    return []


def _local_periods(
    total: NDArray[np.float64], width: int, hop: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ends of windows, and how many samples before each the traffic looked alike; NaN: nowhere.

    Two periods are enough to see that the step has grown, where an autocorrelation takes several.
    """
    first, last = int(_LAGS[0] * width), math.ceil(_LAGS[1] * width)
    size = max(3, round(_LOOK * width))
    starts = np.arange(last, len(total) - size + 1, hop)
    windows = sliding_window_view(total, size)
    centred = windows - windows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    now = centred[starts]
    alike = np.empty((last - first + 1, len(starts)))
    for row, lag in enumerate(range(first, last + 1)):
        scale = np.maximum(norms[starts] * norms[starts - lag], 1e-9)
        alike[row] = np.einsum("ij,ij->i", now, centred[starts - lag]) / scale
    best = alike.argmax(axis=0)
    inner = (best > 0) & (best < len(alike) - 1)
    columns, middle = np.arange(len(starts)), np.clip(best, 1, len(alike) - 2)
    left, peak, right = (alike[middle + shift, columns] for shift in (-1, 0, 1))
    bend = np.minimum(left - 2 * peak + right, -1e-12)
    lags = first + middle + 0.5 * (left - right) / bend  # the top of a parabola through three
    return starts + size, np.where(inner & (peak > _ALIKE), lags, np.nan)


def _spreads(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Deviation of each NIC [windows, nics], no less than that of all of them together.

    A NIC that lags, though it always did, varies more than the others.
    """
    own = np.median(np.abs(windows - np.median(windows, axis=0)), axis=0)
    every = np.median(np.abs(windows - np.median(windows)))
    return np.asarray(1.4826 * np.maximum(own, every))


def traffic_findings(traffic: Traffic, file: str = "") -> list[Finding]:
    """The NIC that left the others first, and what all of them did."""
    alarms = find_alarms(traffic)
    if not alarms:
        return []
    named = [a for a in alarms if a.nic is not None]
    chosen = named[0] if named else alarms[0]
    count = sum(a.nic == chosen.nic for a in alarms)
    who = f"NIC {chosen.nic}" if chosen.nic is not None else "the network"
    return [
        Finding(
            kind="traffic", category="traffic", confidence=min(0.95, 0.5 + 0.05 * count),
            nodes=(chosen.nic,) if chosen.nic else (), device=chosen.nic or "",
            what=f"{who} {chosen.what} from {show_seconds(chosen.at_s)} on",
            why=f"{count} windows of two periods differ from the median NIC",
            evidence=(Evidence(file=file, text=f"first at {chosen.at_s:.1f} s: {chosen.what}"),),
            next=next_step("traffic"), source="traffic", cost=0.05,
        )
    ]  # fmt: skip
