"""`msctl diagnose`: the verdict on a run or on what a foreign job left behind."""

from pathlib import Path
from typing import Annotated

import typer

from engine.diagnose.finding import Report, Times
from engine.diagnose.parts import LABELS
from engine.errors import TraceError
from engine.units import show_ratio, show_seconds
from msctl.flags import command_flags, complete_run
from msctl.ui import Ui

_RANKS_SHOWN = 8


def _place(name: str, text: str) -> object:
    return typer.Option(name, metavar="PATH", help=text)


@command_flags
def diagnose(
    ui: Ui,
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Run folder, or a folder of a foreign job.", autocompletion=complete_run
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", help="A run by id, unique prefix, name, or `last`.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where runs are kept.")] = Path("runs"),
    last: Annotated[
        int | None, typer.Option("--last", min=3, help="Only this many newest steps (default all).")
    ] = None,
    logs: Annotated[Path | None, _place("--logs", "Logs of any framework, in any split.")] = None,
    fr: Annotated[Path | None, _place("--fr", "Flight-recorder dumps, pickle or JSON.")] = None,
    traces: Annotated[Path | None, _place("--traces", "Traces of torch.profiler.")] = None,
    heartbeats: Annotated[Path | None, _place("--heartbeats", "Heartbeats, JSON lines.")] = None,
    dmesg: Annotated[Path | None, _place("--dmesg", "Kernel logs.")] = None,
    stacks: Annotated[Path | None, _place("--stacks", "Stacks: py-spy or faulthandler.")] = None,
    ras: Annotated[Path | None, _place("--ras", "Output of NCCL RAS, text or JSON.")] = None,
    segments: Annotated[Path | None, _place("--segments", "Timed segments, JSON lines.")] = None,
) -> None:
    """Say where a run's time went and what is wrong with it.

    Takes a run of msctl, or what a job of any framework left behind. Prints a verdict (who, why,
    what next) and, for a run, the parts of an average step. Exit code 0: healthy, 4: the verdict is
    bad, 3: the input cannot be read.

    *Examples*

    - `msctl diagnose --job last`
    - `msctl diagnose runs/tiny --last 50`
    - `msctl diagnose --logs logs --fr dumps --dmesg dmesg.log`
    """
    from engine.diagnose.foreign import Inputs, diagnose_foreign, inputs_of
    from engine.diagnose.jobs import find_run, is_run
    from engine.diagnose.run import diagnose_run

    inputs = Inputs(logs, fr, traces, heartbeats, dmesg, stacks, ras, segments)
    foreign = any(place is not None for place in inputs)
    if sum((run is not None, job is not None, foreign)) != 1:
        raise TraceError(
            "name one job: a folder, --job, or the inputs of a foreign job",
            remedy="name a run folder, or --job last, or --logs DIR",
        )
    if job is not None:
        run = find_run(job, runs)
    if run is not None and is_run(run):
        report = diagnose_run(run, last=last)
    else:
        if run is not None and not run.is_dir():
            raise TraceError(f"{run}: no such folder", remedy="name a run folder, or --job last")
        with ui.progress("reading", 1.0) as advance:
            shown = [0.0]

            def on_progress(share: float) -> None:
                advance(share - shown[0])
                shown[0] = share

            report = diagnose_foreign(inputs_of(run) if run else inputs, on_progress=on_progress)
    ui.result(report, show_report)
    ui.exit(report.verdict.state in ("degraded", "faulty"))


def show_report(ui: Ui, report: Report) -> None:
    """The verdict in the first lines, then the step, then what was not looked at."""
    verdict = report.verdict
    degrees = " x ".join(f"{axis} {n}" for axis, n in report.layout.items())
    read = ", ".join(f"{count} {kind}" for kind, count in report.read.items())
    step = "" if report.last_step is None else f"   last step {report.last_step}"
    world = f"   world {report.world}" if report.world else ""
    ui.line(
        f"job {report.job}{world}{f' = {degrees}' if degrees else ''}{step}   "
        f"read {read}, {show_seconds(report.seconds)}"
    )
    bad = verdict.state in ("degraded", "faulty")
    sure = f"   confidence {verdict.confidence:.2f}" if bad else ""
    name = f" {verdict.kind}, {verdict.category}:" if bad else ":"
    ui.line(
        f"VERDICT  {verdict.state}{name} {verdict.what}{sure}", "bold red" if bad else "bold green"
    )
    _field(ui, "why", verdict.why)
    where = f"{verdict.file}:{verdict.line}" if verdict.line else verdict.file
    _field(ui, "where", where)
    _field(ui, "next", verdict.next)
    for finding in report.findings[1:]:
        ui.line(
            f"also     {finding.what} ({finding.category}, confidence {finding.confidence:.2f})"
        )
    for symptom in report.symptoms:
        ui.line(f"symptom  {symptom.count} x {symptom.what}")
    for evidence in report.unreadable:
        ui.line(f"unread   {evidence.file}: {evidence.text}")
    if report.times is not None:
        _show_times(ui, report.times)
    if report.not_looked_at:
        _field(ui, "not looked at", "; ".join(report.not_looked_at))


def _field(ui: Ui, name: str, text: str) -> None:
    if text:
        ui.line(f"  {name:<6} {text}")


def _show_times(ui: Ui, times: Times) -> None:
    """Where the step went, over all ranks and for the slowest against their peers."""
    first, final = times.steps
    title = f"Average step {show_seconds(times.step_s)}, steps {first}-{final}, {times.ranks} ranks"
    rows = [(LABELS[p.name], show_seconds(p.seconds), show_ratio(p.share)) for p in times.parts]
    ui.line("")
    ui.table(title, ("part", "seconds", "share"), rows)
    shown = [part.name for part in times.parts if part.share >= 0.01]
    columns = ("rank", "tp", "pp", "dp", "step", "against peers", *(LABELS[n] for n in shown))
    ui.table(
        "Ranks, slowest against their peers first",
        columns,
        [
            (
                r.rank,
                r.tp,
                r.pp,
                r.dp,
                show_seconds(r.step_s),
                f"{100 * r.excess:+.1f} %",
                *(show_seconds(r.parts_s.get(n, 0.0)) for n in shown),
            )
            for r in times.per_rank[:_RANKS_SHOWN]
        ],
    )
    for note in times.notes:
        ui.line(f"note: {note}")
