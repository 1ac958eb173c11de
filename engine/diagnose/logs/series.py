"""Faults that show in the numbers of healthy lines: step times that jump.

Only asked when no line reports an error. A step time that alternates between quick and slow
ones is an input pipeline that refills; one that stays longer from some step on is a slow device
or link, or somebody else's work on it.
"""

import itertools
import re
import statistics
from typing import NamedTuple

_TIME = re.compile(
    r"(?:elapsed time per iteration \(ms\)|time/step|step[_ ]?time|iter(?:ation)?[_ ]?time|"
    r"sec/step|"
    r"time per step|elapsed|(?:step|iteration) took|s/it|batch_time|\btime)(?!\w)"
    r" ?[:=|]? ?(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
_DATA = re.compile(r"(?:data(?:[_ ]?(?:load\w*|time|wait))?)\b ?[:=|]? ?(\d+\.\d+)", re.IGNORECASE)


class Jump(NamedTuple):
    """Step times that jump: the first slow one after a quick one, and how much slower they are."""

    line: int
    factor: float
    share: float
    """Share of the steps that are slow."""
    data: bool
    """The line names the time for data and it makes up most of a slow step."""


_STEADY = 4
"""Steps before and after a shift; fewer are a checkpoint or an evaluation."""


class Shift(NamedTuple):
    """Step times that became longer and stayed so."""

    line: int
    factor: float


def find_shift(lines: list[tuple[int, str]]) -> Shift | None:
    """The line from which on every step takes at least twice the time of all before it."""
    rows = [(n, float(found[1])) for n, text in lines if (found := _TIME.search(text))]
    values = [seconds for _, seconds in rows[1:]]
    longest = list(itertools.accumulate(values, max))
    least = list(itertools.accumulate(reversed(values), min))[::-1]
    for at in range(_STEADY, len(values) - _STEADY + 1):
        if 0 < longest[at - 1] <= least[at] / 2:
            factor = statistics.median(values[at:]) / statistics.median(values[:at])
            return Shift(rows[at + 1][0], factor)
    return None


def find_jumps(lines: list[tuple[int, str]]) -> Jump | None:
    """Step times of one rank's lines (number, text) that fall into quick and slow ones."""
    times, numbers, waits = [], [], []
    for number, text in lines:
        found = _TIME.search(text)
        if found is not None:
            data = _DATA.search(text)
            times.append(float(found[1]))
            waits.append(float(data[1]) if data else 0.0)
            numbers.append(number)
    if len(times) < 6:
        return None
    values = times[1:]
    low = statistics.quantiles(values, n=4, method="inclusive")[0]
    slow = [n for n, seconds in enumerate(values) if seconds > 3 * max(low, 1e-9)]
    share = len(slow) / len(values)
    if not 0.1 <= share <= 0.75 or len(slow) < 2:
        return None
    quick = min({*range(len(values))} - {*slow})
    at = next((n for n in slow if n > quick), slow[0])
    if times[0] > 3 * low and waits[0] > times[0] / 2:
        at = -1  # the first step is no warm-up: it waited for data like the later slow ones
    long = [values[n] for n in slow]
    data_share = sum(waits[n + 1] for n in slow) / max(sum(long), 1e-9)
    factor = statistics.median(long) / max(low, 1e-9)
    return Jump(numbers[at + 1], factor, share, data_share > 0.5)
