"""`msctl plan`: the layout to use, the MFU to expect, and why."""

from typing import Annotated

import typer

from engine.plan.report import Candidate, PlanReport
from engine.units import show_bytes, show_count, show_ratio, show_seconds
from msctl.flags import Sets, command_flags
from msctl.ui import Ui


@command_flags
def plan(
    ui: Ui,
    model: Annotated[
        str, typer.Option(help="Preset, config.json (or its folder), or recipe.")
    ] = "175b",
    gpus: Annotated[int, typer.Option(help="Devices; 0 = the recipe's or cluster's.", min=0)] = 0,
    cluster: Annotated[str, typer.Option(help="Preset or TOML file; default a100-nvl8.")] = "",
    batch: Annotated[int, typer.Option(help="Global batch, sequences; 0 = chosen.", min=0)] = 0,
    seq: Annotated[int, typer.Option(help="Tokens of a sequence; 0 = the model's.", min=0)] = 0,
    precision: Annotated[str, typer.Option(help="bf16, fp16, fp8; default bf16.")] = "",
    system: Annotated[str, typer.Option(help="Training system whose overheads apply.")] = "msctl",
    top: Annotated[int, typer.Option(help="Candidates to show.", min=1, max=1000)] = 10,
    sets: Sets = None,
) -> None:
    """Rank the layouts of a model on a cluster by predicted step time.

    Every layout that divides is checked, bounded and, where it can still win, simulated.

    *Examples*

    - `msctl plan --model 175b --gpus 12288`
    - `msctl plan --model llama3-70b --gpus 512 --cluster h100-nvl8 --set layout.tp=8`
    """
    from engine.plan.request import Request, make_plan

    request = Request(
        model=model, gpus=gpus, cluster=cluster, batch=batch, seq=seq, precision=precision,
        system=system, sets=tuple(sets or ()), top=top,
    )  # fmt: skip
    report = make_plan(request)
    ui.result(report, show_report)
    ui.exit(verdict_bad=not report.candidates)


def show_report(ui: Ui, report: PlanReport) -> None:
    """The ranked table, what it assumes, and what was refused."""
    ui.table(_title(report), _COLUMNS, [_row(i + 1, c) for i, c in enumerate(report.candidates)])
    for text in report.assumptions:
        ui.note(f"assumed: {text}")
    ui.note(report.convention)
    ui.note(
        f"{report.considered} layouts bounded, {report.simulated} simulated; refused: "
        + ("; ".join(f"{r.count} {r.rule}" for r in report.refusals) or "none")
    )
    if not report.candidates:
        ui.table("no layout fits", ("rule", "layouts", "says"),
                 [(r.rule, r.count, r.message) for r in report.refusals])  # fmt: skip


_COLUMNS = (
    "rank", "tp", "pp", "vpp", "dp", "micro-batch", "recompute", "step", "P10-P90", "MFU",
    "bubble", "exposed tp", "exposed pp", "exposed dp", "memory",
)  # fmt: skip


def _title(report: PlanReport) -> str:
    return (
        f"{show_count(report.params)} parameters on {report.gpus} x {report.cluster.device.name}, "
        f"batch {report.global_batch} x {report.model.seq} tokens, {report.precision}, "
        f"system {report.system}"
    )


def _row(rank: int, candidate: Candidate) -> tuple[str | int, ...]:
    layout, exposed = candidate.layout, candidate.exposed
    return (
        rank, layout.tp, layout.pp, layout.vpp, layout.dp, layout.micro_batch, layout.recompute,
        show_seconds(candidate.step_s),
        f"{candidate.step_p10_s:.2f}-{candidate.step_p90_s:.2f} s",
        show_ratio(candidate.mfu), show_ratio(candidate.bubble), show_seconds(exposed.tp),
        show_seconds(exposed.pp), show_seconds(exposed.dp), show_bytes(candidate.memory_bytes),
    )  # fmt: skip
