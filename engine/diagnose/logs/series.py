"""Faults that show in the numbers of healthy lines: step times that jump.

Only asked when no line reports an error. A step time that alternates between quick and slow
ones is an input pipeline that refills; a rank whose numbers are longer than the others' is a
straggler.
"""

import re
from typing import NamedTuple

import numpy as np

_TIME = re.compile(
    r"(?:elapsed time per iteration \(ms\)|time/step|step[_ ]?time|iter(?:ation)?[_ ]?time|"
    r"sec/step|"
    r"time per step|elapsed|step took|s/it|batch_time|\btime)(?!\w) ?[:=|]? ?(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
_DATA = re.compile(r"(?:data(?:[_ ]?(?:load\w*|time|wait))?)\b ?[:=|]? ?(\d+\.\d+)", re.IGNORECASE)


class Jump(NamedTuple):
    """Step times that jump: where the first slow one stands and how much slower they are."""

    line: int
    factor: float
    share: float
    """Share of the steps that are slow."""
    data: bool
    """The line names the time for data and it makes up most of a slow step."""


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
    values = np.array(times[1:])
    low = float(np.percentile(values, 25))
    slow = values > 3 * max(low, 1e-9)
    share = float(slow.mean())
    if not 0.1 <= share <= 0.75 or slow.sum() < 2:
        return None
    at = int(np.flatnonzero(slow)[0])
    data_share = np.array(waits[1:])[slow].sum() / max(values[slow].sum(), 1e-9)
    factor = float(np.median(values[slow])) / max(low, 1e-9)
    return Jump(numbers[at + 1], factor, share, bool(data_share > 0.5))
