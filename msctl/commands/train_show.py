"""What `msctl train` shows of a job that somebody else drives, of a start elsewhere, of a drill."""

from pathlib import Path

from engine.job.drills import DrillReport
from engine.job.follow import follow
from engine.job.view import JobView
from engine.job.where import Start
from engine.units import show_number, show_ratio, show_seconds
from msctl.ui import Ui


def watch_run(ui: Ui, folder: Path) -> None:
    """Show a job until it ends; its last state is the answer."""
    last = None
    status = ui.stderr.status("") if ui.is_live else None
    if status is not None:
        status.start()
    try:
        for view in follow(folder):
            if status is not None:
                status.update(line_of(view))
            elif last is None or (view.state, view.step) != (last.state, last.step):
                ui.note(line_of(view))
            for what in view.incidents[len(last.incidents) if last else 0 :]:
                ui.note(f"incident: {what}")
            last = view
    finally:
        if status is not None:
            status.stop()
    if last is not None:
        ui.result(last, show_view)


def line_of(view: JobView) -> str:
    """A job in one line."""
    eta = f"  ETA {show_seconds(view.eta_s)}" if view.eta_s else ""
    loss = f"  loss {view.loss:.4f}" if view.loss is not None else ""
    well = sum(node.state in ("active", "ready") for node in view.nodes)
    return (
        f"{view.job} {view.state}: step {view.step}/{view.total_steps}{loss}  "
        f"MFU {show_ratio(view.mfu)}  {well} of {show_number(len(view.nodes), 'node')} well  "
        f"{show_number(view.restarts, 'restart')}{eta}"
    )


def show_view(ui: Ui, view: JobView) -> None:
    """The job, its nodes, its incidents."""
    ui.sentence(line_of(view))
    rows = [
        (
            node.node, node.state, _ranks(node.ranks), f"{node.load:.1f}",
            "-" if node.gpu_temperature is None else f"{node.gpu_temperature} C",
            node.doing or "-", node.note or "-",
        )
        for node in view.nodes
    ]  # fmt: skip
    ui.table("nodes", ("node", "state", "ranks", "load", "GPU", "doing", "note"), rows)
    if view.incidents:
        ui.table("incidents", ("what",), [(what,) for what in view.incidents])


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if ranks else "-"


def show_start(ui: Ui, start: Start) -> None:
    """The script or manifest itself, so that it can be piped on."""
    for line in start.text.splitlines():
        ui.line(line)


def show_drill(ui: Ui, report: DrillReport) -> None:
    """One row per fault."""
    ui.sentence(
        f"{report.job} {report.ended} after {show_number(report.steps, 'step')}, "
        f"{show_number(report.restarts, 'restart')}"
    )
    rows = [
        (
            score.fault, "passed" if score.is_passed else "failed" if score.came else "never came",
            score.detected_by or "-", _time(score.detected_s),
            "-" if score.is_located is None else "yes" if score.is_located else "no",
            score.named.strip() or "-", _time(score.recovered_s), score.steps_lost,
        )
        for score in report.scores
    ]  # fmt: skip
    columns = ("fault", "result", "detected by", "after", "located", "named", "recovered after",
               "steps lost")  # fmt: skip
    ui.table("drill", columns, rows)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else show_seconds(seconds)
