"""How a diagnosis is shown on a terminal: the verdict first, then where the step went."""

from engine.diagnose.finding import Attribution, Report, Times
from engine.diagnose.parts import LABELS
from engine.units import show_ratio, show_seconds
from msctl.ui import Cell, Ui

_RANKS_SHOWN = 8


def show_report(ui: Ui, report: Report) -> None:
    """The verdict in the first lines, then findings, the step, and what was not looked at."""
    verdict = report.verdict
    degrees = " x ".join(f"{axis} {n}" for axis, n in report.layout.items())
    read = ", ".join(f"{count} {kind}" for kind, count in report.read.items())
    step = "" if report.last_step is None else f"   last step {report.last_step}"
    world = f"   world {report.world}" if report.world else ""
    _line(
        ui,
        f"job {report.job}{world}{f' = {degrees}' if degrees else ''}{step}   "
        f"read {read}, {show_seconds(report.seconds)}",
    )
    bad = verdict.state in ("degraded", "faulty")
    sure = f"   confidence {verdict.confidence:.2f}" if bad else ""
    name = f" {verdict.kind}, {verdict.category}:" if bad else ":"
    style = "bold red" if bad else "bold green"
    _line(ui, f"{verdict.state}{name} {verdict.what}{sure}", "VERDICT  ", style)
    _field(ui, "why", verdict.why)
    _field(ui, "where", f"{verdict.file}:{verdict.line}" if verdict.line else verdict.file)
    _field(ui, "next", verdict.next)
    for finding in report.findings[1:]:
        _line(ui, f"{finding.what} ({finding.category}, {finding.confidence:.2f})", "also     ")
    for symptom in report.symptoms:
        _line(ui, f"{symptom.count} x {symptom.what}", "symptom  ")
    for evidence in report.unreadable:
        _line(ui, f"{evidence.file}: {evidence.text}", "unread   ")
    if report.not_looked_at:
        _line(ui, "; ".join(report.not_looked_at), "not looked at: ")
    if report.times is not None:
        _show_times(ui, report.times)
    if report.attribution is not None:
        _show_attribution(ui, report.attribution)


def _line(ui: Ui, text: str, head: str = "", style: str = "") -> None:
    """One sentence, whatever a file name or a log put into it: none may forge a line of its own."""
    ui.sentence(text.replace("\n", "\\n"), head, style)


def _field(ui: Ui, name: str, text: str) -> None:
    if text:
        _line(ui, text, f"  {name:<6} ")


def _show_times(ui: Ui, times: Times) -> None:
    """Where the step went, over all ranks and for the slowest against their peers."""
    first, final = times.steps
    title = f"Average step {show_seconds(times.step_s)}, steps {first}-{final}, {times.ranks} ranks"
    rows = [(LABELS[p.name], show_seconds(p.seconds), show_ratio(p.share)) for p in times.parts]
    ui.line("")
    ui.table(title, ("part", "seconds", "share"), rows)
    shown = [part.name for part in times.parts if part.share >= 0.01]
    columns = ("rank", "tp", "pp", "dp", "step", "against peers", *(LABELS[n] for n in shown))
    cells: list[tuple[Cell, ...]] = [
        (
            *(r.rank, r.tp, r.pp, r.dp, show_seconds(r.step_s), f"{100 * r.excess:+.1f} %"),
            *(show_seconds(r.parts_s.get(n, 0.0)) for n in shown),
        )
        for r in times.per_rank[:_RANKS_SHOWN]
    ]
    ui.table("Ranks, slowest against their peers first", columns, cells)
    for note in times.notes:
        _line(ui, note, "note: ")


def _show_attribution(ui: Ui, attribution: Attribution) -> None:
    """From peak (or the whole step) down to what was measured, and what would change it."""
    measured = show_seconds(attribution.measured_s)
    mfu = attribution.mfu
    title = f"Where a step of {measured} goes, against the simulated schedule"
    if mfu is not None:
        title = f"From peak to MFU {show_ratio(mfu)}: points lost in a step of {measured}"
    rows = [(r.name, show_ratio(r.points), show_seconds(r.seconds)) for r in attribution.rows]
    ui.table(title, ("loss" if mfu is not None else "part", "points", "seconds"), rows)
    what_if = [
        (
            f"without {w.without}",
            show_seconds(w.step_s),
            f"-{show_ratio(w.gain)}",
            None if w.mfu_points is None else f"+{100 * w.mfu_points:.1f}",
        )
        for w in attribution.what_if
    ]
    if what_if:
        ui.table("What if", ("step", "seconds", "saved", "points of MFU"), what_if)
