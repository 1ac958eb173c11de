"""A schedule as a text grid: one row per stage, one column per unit of time.

Cells show the micro-batch; chunks beyond a stage's first are marked by letters (a is the first).
Upper row style: forwards plain, backwards in brackets. Needs no terminal and no colour.
"""

from collections.abc import Callable

from engine.schedule.action import COMPUTE, Action, Kind
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import simulate


def grid(
    schedule: Schedule,
    *,
    duration: Callable[[Action], int] | None = None,
    fault: Action | None = None,
    width: int = 0,
) -> str:
    """Draw the schedule as it unfolds with whole-number durations (default: forward 1, backward 2).

    `fault` marks one action with `>` `<`. `width` cuts the drawing to that many columns of time (0
    = all).
    """
    unit = duration or _one_and_two
    run = simulate(schedule, lambda a: float(unit(a)) if a.kind in COMPUTE else 0.0)
    spans = [s for s in run.spans if s.lane == "compute"]
    end = max((round(s.end_s) for s in spans), default=0)
    cell = max((len(_label(schedule, s.action)) for s in spans), default=1) + 2
    rows = [[" " * cell] * end for _ in range(schedule.pp)]
    for span in spans:
        text = _label(schedule, span.action)
        marked = span.action == fault
        shown = f">{text}<" if marked else text
        for t in range(round(span.start_s), round(span.end_s)):
            rows[span.stage][t] = shown.center(cell)
            shown = "=" * len(text)
    cut = width or end
    lines = [f"stage {i:<3}|{''.join(row[:cut])}|" for i, row in enumerate(rows)]
    if cut < end:
        lines.append(f"({end - cut} more columns)")
    return "\n".join(lines)


def _one_and_two(action: Action) -> int:
    return 2 if action.kind is Kind.BACKWARD else 1


def _label(schedule: Schedule, action: Action) -> str:
    local = schedule.chunks_of(schedule.stage_of(action.chunk)).index(action.chunk)
    letter = chr(ord("a") + local % 26) if schedule.vpp > 1 else ""
    shown = f"{action.microbatch}{letter}"
    return {
        Kind.FORWARD: shown, Kind.BACKWARD: f"({shown})",
        Kind.BACKWARD_INPUT: f"[{shown}]", Kind.BACKWARD_WEIGHT: f"{{{shown}}}",
    }[action.kind]  # fmt: skip
