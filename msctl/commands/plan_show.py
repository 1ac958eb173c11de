"""How the answers of `msctl plan` are shown: rows and lines, nothing computed."""

from typing import TYPE_CHECKING

from engine.units import show_bytes, show_count, show_ratio, show_seconds, show_span
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.job.simulate import Months
    from engine.plan.adapt import Adapted
    from engine.plan.emitted import Emitted
    from engine.plan.exhaust import Exhausted
    from engine.plan.goodput import Goodput
    from engine.plan.lines import LineScore
    from engine.plan.paper import Ladder
    from engine.plan.report import Candidate, PlanReport
    from engine.plan.validate import GroupScore, Validation

_COLUMNS = (
    "rank", "tp", "pp", "vpp", "dp", "micro-batch", "schedule", "recompute", "step",
    "P10-P90", "MFU", "bubble", "exposed tp", "exposed pp", "exposed dp", "memory",
)  # fmt: skip


def show_report(ui: Ui, report: "PlanReport") -> None:
    """The ranked table, what it assumes, and what was refused."""
    if report.candidates:
        _ranking(ui, _title(report), report.candidates)
    else:
        ui.table("no layout fits", ("rule", "layouts", "says"),
                 [(r.rule, r.count, r.message) for r in report.refusals])  # fmt: skip
    if report.sensitivity:
        ui.table("from the peak to the MFU of rank 1", ("cause", "time", "points of MFU"),
                 [(s.cause, show_seconds(s.seconds), f"{100 * s.points:.1f}")
                  for s in report.waterfall])  # fmt: skip
        ui.table("one change at a time, rank 1", ("change", "step", "points of MFU"),
                 [(s.change, show_seconds(s.step_s), f"{100 * s.points:+.1f}")
                  for s in report.sensitivity])  # fmt: skip
    if report.budget is not None:
        spent = report.budget
        ui.sentence(
            f"{show_count(spent.tokens)} tokens: {spent.days:.2f} days, "
            f"{show_count(spent.gpu_hours)} GPU-hours, {show_count(spent.cost)} at "
            f"{spent.price_per_gpu_hour:g} per GPU-hour"
        )
    for text in report.assumptions:
        ui.note(f"assumed: {text}")
    ui.note(report.convention)
    refused = "; ".join(f"{r.count} {r.rule}" for r in report.refusals) or "none"
    ui.note(
        f"{report.considered} layouts bounded, {report.simulated} simulated; refused: {refused}"
    )


def _title(report: "PlanReport") -> str:
    return (
        f"{show_count(report.params)} parameters on {report.gpus} x {report.cluster.device.name}, "
        f"batch {report.global_batch} x {report.model.seq} tokens, {report.precision}, "
        f"system {report.system}"
    )


def _ranking(ui: Ui, title: str, candidates: "tuple[Candidate, ...]") -> None:
    """The table of candidates, with further columns for what sets some of them apart."""
    more = {name: cells for name, cells in _more(candidates).items() if cells}
    rows = [_row(rank, candidate) for rank, candidate in enumerate(candidates, 1)]
    rows = [(*row, *(cells[i] for cells in more.values())) for i, row in enumerate(rows)]
    ui.table(title, (*_COLUMNS, *more), rows)
    for why in dict.fromkeys(c.obstacle for c in candidates if c.obstacle):
        ranks = [str(i) for i, c in enumerate(candidates, 1) if c.obstacle == why]
        ui.note(f"`msctl train` does not run rank {', '.join(ranks)}: {why}")


def _more(candidates: "tuple[Candidate, ...]") -> dict[str, list[str | int]]:
    """Columns that most tables do not need; empty where all rows are as usual."""
    layouts = [c.layout for c in candidates]
    zero = [layout.zero for layout in layouts]
    split = ["yes" if layout.sequence_parallel else "no" for layout in layouts]
    wide = {"cp": [layout.cp for layout in layouts], "ep": [layout.ep for layout in layouts]}
    columns: dict[str, list[str | int]] = {
        "zero": [*zero] if len(set(zero)) > 1 or 3 in zero else [],
        "sequence parallel": [*split] if len(set(split)) > 1 else [],
    }
    for name, degrees in wide.items():
        columns[name] = [*degrees] if max(degrees, default=1) > 1 else []
    switched = [_switches(c) for c in candidates]
    columns["switches"] = [text or "-" for text in switched] if any(switched) else []
    runs: list[str | int] = ["no" if c.obstacle else "yes" for c in candidates]
    columns["msctl train"] = runs if "no" in runs else []
    return columns


def _switches(candidate: "Candidate") -> str:
    """`overlap_dp off`, where the complete search changed what the system does."""
    return ", ".join(f"{name} {'on' if on else 'off'}" for name, on in candidate.switches.items())


def _row(rank: int, candidate: "Candidate") -> tuple[str | int, ...]:
    layout, exposed = candidate.layout, candidate.exposed
    return (
        rank, layout.tp, layout.pp, layout.vpp, layout.dp, layout.micro_batch, layout.schedule,
        layout.recompute, show_seconds(candidate.step_s),
        show_span(candidate.step_p10_s, candidate.step_p90_s),
        show_ratio(candidate.mfu), show_ratio(candidate.bubble), show_seconds(exposed.tp),
        show_seconds(exposed.pp), show_seconds(exposed.dp), show_bytes(candidate.memory_bytes),
    )  # fmt: skip


def show_ladder(ui: Ui, ladder: "Ladder") -> None:
    """Table 3, published and predicted."""
    ui.table(
        "the paper's Table 3, 175B on 256 GPUs",
        ("step", "published", "predicted", "published gain", "predicted gain"),
        [
            (r.step, show_ratio(r.published), show_ratio(r.predicted),
             f"{100 * r.published_gain:+.1f}", f"{100 * r.predicted_gain:+.1f}")
            for r in ladder.rungs
        ],
    )  # fmt: skip
    ui.note(ladder.convention)


def show_validation(ui: Ui, validation: "Validation") -> None:
    """Scores by source group and hardware, the whole, and memory."""
    summary, memory = validation.summary, validation.memory
    for title, scores in (("source", validation.groups), ("hardware", validation.hardware)):
        ui.table(f"by {title}", (title, "rows", "mean error", "bias", "worst", "worst run"),
                 [_score(s) for s in scores])  # fmt: skip
    if validation.lines:
        columns = ("source", "system", "runs", "slope", "predicted slope", "intercept",
                   "predicted intercept", "what")  # fmt: skip
        ui.table("seconds per micro-batch and per step, where runs make a line", columns,
                 [_line(line) for line in validation.lines])  # fmt: skip
    ui.sentence(
        f"{summary.rows} rows: mean over groups {show_ratio(summary.mape)}, over rows "
        f"{show_ratio(summary.row_mape)}; {show_ratio(summary.coverage)} between P10 and P90"
    )
    if memory.rows:
        ui.sentence(f"peak memory, {memory.rows} rows: mean error {show_ratio(memory.mape)}")
    if memory.trials:
        ui.sentence(
            f"fits or not, {memory.trials} trials: {show_ratio(memory.right)} right, "
            f"{show_ratio(memory.false_fits)} said to fit that did not"
        )
    if summary.skipped:
        ui.note(f"{summary.skipped} rows not predicted:")
        for reason in sorted({s.reason for s in validation.skipped}):
            ids = [s.id for s in validation.skipped if s.reason == reason]
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            ui.note(f"{', '.join(ids[:3])}{more}: {reason}")
    ui.note("assumptions of every row: --json, rows[].assumptions")


def _score(score: "GroupScore") -> tuple[str | int, ...]:
    return (
        score.name, score.rows, show_ratio(score.mape), f"{100 * score.bias:+.1f} %",
        f"{100 * score.worst:+.1f} %", score.worst_id,
    )  # fmt: skip


def _line(line: "LineScore") -> tuple[str | int, ...]:
    return (
        line.group, line.system, line.runs, f"{line.slope_s:.4f} s",
        f"{line.predicted_slope_s:.4f} s", f"{line.intercept_s:.3f} s",
        f"{line.predicted_intercept_s:.3f} s", line.shape,
    )  # fmt: skip


def show_calibration(ui: Ui, adapted: "Adapted") -> None:
    """What was fitted, and how well it predicts what it has not seen."""
    rows = [(c.name, f"{c.before:.4g}", f"{c.after:.4g}") for c in adapted.constants]
    ui.table("fitted constants", ("constant", "before", "after"), rows)
    ui.sentence(
        f"{adapted.rows} runs: mean error {show_ratio(adapted.error_before)} before, "
        f"{show_ratio(adapted.error_after)} after, {show_ratio(adapted.error_left_out)} for runs "
        "left out in turn"
    )
    if adapted.path:
        ui.note(f"wrote {adapted.path}")


def show_exhausted(ui: Ui, found: "Exhausted") -> None:
    """The best of every combination."""
    _ranking(ui, "best of all combinations", found.candidates)
    ui.note(
        f"{show_count(found.enumerated)} combinations, {show_count(found.feasible)} feasible, "
        f"{found.simulated} simulated"
    )


def show_goodput(ui: Ui, found: "Goodput") -> None:
    """Where wall time goes that is not training."""
    rows = [
        ("mean time between failures of the job", show_seconds(found.job_mtbf_s)),
        ("failures a day", f"{found.failures_per_day:.2f}"),
        ("best time between checkpoints", show_seconds(found.best_ckpt_every_s)),
        ("effective training time", show_ratio(found.effective)),
        ("lost to checkpoints", show_ratio(found.lost_to_ckpt)),
        ("lost to work done twice", show_ratio(found.lost_to_rework)),
        ("lost to detection and restart", show_ratio(found.lost_to_recovery)),
        ("spare nodes", str(found.spares)),
    ]
    ui.table(f"goodput of {found.nodes} nodes", ("what", "value"), rows)


def show_months(ui: Ui, found: "Months") -> None:
    """What became of the days, and what it cost."""
    rows = [
        ("effective training time", show_ratio(found.effective)),
        ("lost to checkpoints", show_ratio(found.lost_to_ckpt)),
        ("lost to work done twice", show_ratio(found.lost_to_rework)),
        ("lost to detection", show_ratio(found.lost_to_detection)),
        ("lost to self-checks", show_ratio(found.lost_to_checks)),
        ("lost to restarts", show_ratio(found.lost_to_restarts)),
        ("lost to waiting for nodes", show_ratio(found.lost_to_waiting)),
        ("lost to fewer replicas", show_ratio(found.lost_to_fewer_replicas)),
        ("faults", str(found.faults)),
        ("nodes evicted", f"{found.evictions}, {found.wrong_evictions} of them without fault"),
        ("GPU-hours lost", show_count(found.gpu_hours_lost)),
        ("money lost", show_count(found.money_lost)),
    ]
    ui.table(f"{found.days:g} simulated days", ("what", "value"), rows)
    if found.ended:
        ui.note(f"the job ended early: {found.ended}")


def show_emitted(ui: Ui, found: "Emitted") -> None:
    """A text for another program, as it is; beside it what it was made of."""
    ui.line(found.text.rstrip("\n"))
    for text in found.assumptions:
        ui.note(f"assumed: {text}")
    if found.passed_over:
        ui.warn(found.passed_over)
