"""`msctl diagnose`: the verdict on a run or on what a foreign job left behind."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.errors import TraceError
from engine.units import show_seconds
from msctl.commands.diagnose_show import show_report
from msctl.flags import command_flags, complete_run
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.diagnose.finding import Report
    from engine.diagnose.foreign import Inputs
    from engine.diagnose.load import Spans


_NOT_READ = 3
"""As of an input that cannot be read."""


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
    traffic: Annotated[Path | None, _place("--traffic", "Bytes by NIC and time, CSV.")] = None,
    heatmap: Annotated[bool, typer.Option("--heatmap", help="Draw rank by step.")] = False,
    timeline: Annotated[
        Path | None,
        _place("--timeline", "Write a trace here: .json Chrome's, .pftrace Perfetto's."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", help="Step of the timeline (default the one before the last)."),
    ] = None,
    html: Annotated[Path | None, _place("--html", "Write the report as one page here.")] = None,
    metrics: Annotated[Path | None, _place("--metrics", "Write OpenMetrics text here.")] = None,
    findings: Annotated[Path | None, _place("--findings", "Write findings.jsonl here.")] = None,
) -> None:
    """Say where a run's time went and what is wrong with it.

    Takes a run of msctl, or what a job of any framework left behind. Prints a verdict (who, why,
    what next) and, for a run, the parts of an average step. Exit code 0: healthy, 4: the verdict is
    bad, 3: the input cannot be read, or does not tell how the job did.

    *Examples*

    - `msctl diagnose --job last`
    - `msctl diagnose runs/tiny --last 50`
    - `msctl diagnose --job last --heatmap --html report.html`
    - `msctl diagnose --logs logs --fr dumps --dmesg dmesg.log`
    """
    from engine.diagnose.foreign import Inputs, inputs_of
    from engine.diagnose.jobs import find_run, is_run

    inputs = Inputs(logs, fr, traces, heartbeats, dmesg, stacks, ras, segments, traffic)
    if sum((run is not None, job is not None, any(inputs))) != 1:
        raise TraceError(
            "name one job: a folder, --job, or the inputs of a foreign job",
            remedy="name a run folder, or --job last, or --logs DIR",
        )
    folder = find_run(job, runs) if job is not None else run
    ours = folder is not None and is_run(folder)
    given = inputs if folder is None or ours else inputs_of(folder)
    _refuse_without_effect(ours, timeline, step, last)
    report, spans = _diagnosed(ui, folder if ours else None, given, last)
    ui.result(report, show_report, stands=True)
    _write(ui, report, spans, html, metrics, findings)
    if timeline is not None and folder is not None:
        _timeline(ui, folder, timeline, spans, step)
    if heatmap:
        _draw(ui, spans)
    ui.exit(report.verdict.state in ("degraded", "faulty"))
    if report.verdict.state == "unknown":
        raise typer.Exit(_NOT_READ)  # "nothing wrong" would be read out of a 0


def _refuse_without_effect(
    ours: bool, timeline: Path | None, step: int | None, last: int | None
) -> None:
    """Options that this job or the other options leave without effect are wrong."""
    given = {"--timeline": timeline, "--step": step, "--last": last}
    for option, value in given.items():
        if value is not None and not ours:
            raise typer.BadParameter(
                "it works on the events of a run of msctl, and this job is none; leave it out",
                param_hint=option,
            )
    if step is not None and timeline is None:
        raise typer.BadParameter(
            "it is the step of a timeline; name its file with --timeline", param_hint="--step"
        )
    if timeline is not None:
        from engine.diagnose.timeline import PERFETTO_SUFFIXES

        if timeline.suffix not in (".json", *PERFETTO_SUFFIXES):
            raise typer.BadParameter(
                f"{timeline} ends neither with .json (Chrome) nor with .pftrace (Perfetto)",
                param_hint="--timeline",
            )


def _diagnosed(
    ui: Ui, run: Path | None, inputs: "Inputs", last: int | None
) -> "tuple[Report, Spans | None]":
    """The report of a run of ours, or of a foreign job with a bar while its logs are read."""
    from engine.diagnose.foreign import diagnose_foreign
    from engine.diagnose.readable import readable

    if run is not None:
        from engine.diagnose.run import diagnose_spans

        named = run if run.name not in ("", "..") else run.resolve()
        report, spans = diagnose_spans(named, last=last)
        return readable(report), spans
    with ui.progress("reading", 1.0) as advance:
        done = 0.0

        def on_progress(share: float) -> None:
            nonlocal done
            advance(share - done)
            done = share

        return readable(diagnose_foreign(inputs, on_progress=on_progress)), None


def _draw(ui: Ui, spans: "Spans | None") -> None:
    """The heat map in text: rows of ranks, columns of steps."""
    from engine.diagnose.heatmap import SHADES, heat_map, text_rows

    _need(spans is not None, "--heatmap")
    if spans is not None:
        ui.line("")
        for row in text_rows(heat_map(spans)):
            ui.line(row)
        ui.line(f"shades {SHADES!r}: own work above that of peers, from 0 to 20 %")


def _step_of_timeline(spans: "Spans", wish: int | None) -> int:
    """The step that is drawn: the newest before the last that was kept span by span."""
    steps = [int(step) for step in spans.steps]
    whole = [step for step in steps if step not in spans.summed]
    if wish is None:
        before = [step for step in whole if step != steps[-1]]
        return (before or whole or steps)[-1]
    if wish in spans.summed:
        near = min(whole, key=lambda step: abs(step - wish), default=None)
        raise TraceError(
            f"step {wish} was summed up when it was written (monitor.events_every): its spans have "
            "no place in time",
            remedy=f"draw step {near}, or train with a smaller monitor.events_every"
            if near is not None
            else "train with a smaller monitor.events_every",
        )
    return wish


def _timeline(ui: Ui, folder: Path, out: Path, spans: "Spans | None", step: int | None) -> None:
    """The timeline of one step."""
    from engine.diagnose.run import last_life
    from engine.diagnose.timeline import write_timeline

    _need(spans is not None and len(spans.steps) > 0, "--timeline")
    if spans is not None:
        chosen = _step_of_timeline(spans, step)
        made = write_timeline(last_life(folder), out, spans.layout, steps=(chosen, chosen))
        ui.note(
            f"wrote {out}: step {chosen}, {made.ranks} ranks, {made.slices} slices, "
            f"{made.arrows} arrows; clocks agree within {show_seconds(made.residual_ns / 1e9)}"
        )
        ui.hint("open it at https://ui.perfetto.dev or chrome://tracing")
        if made.slices > _MANY_SLICES and out.suffix == ".json":
            ui.hint("it is large: --timeline FILE.pftrace writes a third of it")


_MANY_SLICES = 200_000


def _need(has: bool, option: str) -> None:
    if not has:
        raise TraceError(
            f"{option} needs the events of a run, and this job has none",
            remedy=f"leave {option} out, or name a run folder that `msctl train` wrote",
        )


def _write(
    ui: Ui,
    report: "Report",
    spans: "Spans | None",
    html: Path | None,
    metrics: Path | None,
    findings: Path | None,
) -> None:
    """The report in the forms that were asked for."""
    from engine.diagnose.export import write_findings, write_metrics

    if html is not None:
        from engine.diagnose.html import write_html

        write_html(report, html, spans)
        ui.note(f"wrote {html}")
    if metrics is not None:
        write_metrics(report, metrics)
        ui.note(f"wrote {metrics}")
    if findings is not None:
        count = write_findings(report, findings)
        ui.note(f"wrote {findings}: {count} findings")
