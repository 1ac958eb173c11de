"""`msctl plan`: the layout to use, the MFU to expect, the error bar to trust, and why."""

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msctl.commands import plan_show as show
from msctl.commands.plan_options import check_options
from msctl.flags import Sets, command_flags
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.plan.report import PlanReport
    from engine.plan.request import Request


def _finite(value: float) -> float:
    """As it is; typer's own lower limit lets `nan` and `inf` through."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


@command_flags
def plan(
    ui: Ui,
    recipe: Annotated[str, typer.Argument(help="Recipe (TOML); or use --model.")] = "",
    model: Annotated[str, typer.Option(help="Preset, or config.json or its folder.")] = "",
    gpus: Annotated[int, typer.Option(help="Devices; 0 = the recipe's or cluster's.", min=0)] = 0,
    cluster: Annotated[str, typer.Option(help="Preset or TOML file; default a100-nvl8.")] = "",
    batch: Annotated[int, typer.Option(help="Global batch, sequences; 0 = chosen.", min=0)] = 0,
    seq: Annotated[int, typer.Option(help="Tokens of a sequence; 0 = the model's.", min=0)] = 0,
    precision: Annotated[
        str, typer.Option(help="bf16, fp16, fp8; default the recipe's, else bf16.")
    ] = "",
    system: Annotated[str, typer.Option(help="Training system whose overheads apply.")] = "msctl",
    top: Annotated[int, typer.Option(help="Candidates to show.", min=1, max=1000)] = 8,
    tokens: Annotated[
        float, typer.Option(help="Token budget: days, hours, money.", min=0, callback=_finite)
    ] = 0.0,
    price: Annotated[
        float, typer.Option(help="Money for one GPU-hour.", min=0, callback=_finite)
    ] = 2.0,
    explain: Annotated[bool, typer.Option("--explain", help="Waterfall, sensitivity.")] = False,
    schedule: Annotated[bool, typer.Option("--schedule", help="Order of work as text.")] = False,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Every combination.")] = False,
    goodput: Annotated[bool, typer.Option("--goodput", help="Failures and checkpoints.")] = False,
    days: Annotated[
        float,
        typer.Option(
            help="With --goodput: simulate so many days of faults.", min=0, callback=_finite
        ),
    ] = 0.0,
    emit: Annotated[str, typer.Option(help="recipe, megatron, torchtitan or sbatch.")] = "",
    trace: Annotated[Path | None, typer.Option(help="Write predicted events here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture here (.svg, .png).")] = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="The paper's Table 3.")] = False,
    validate: Annotated[Path | None, typer.Option(help="Predict a table of runs (CSV).")] = None,
    calibrate: Annotated[Path | None, typer.Option(help="Fit to a table or a run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Cluster file that --calibrate writes.")] = None,
    sets: Sets = None,
) -> None:
    """Rank the layouts of a model on a cluster by predicted step time.

    Every layout that divides is checked, bounded and, where it can still win, simulated.

    *Examples*

    - `msctl plan --model 175b --gpus 12288`
    - `msctl plan --model llama3-70b --gpus 512 --cluster h100-nvl8 --set layout.tp=8`
    - `msctl plan --model 175b --gpus 12288 --explain --tokens 300e9`
    - `msctl plan --model 175b --gpus 12288 --goodput --days 90`
    - `msctl plan --validate runs.csv`
    - `msctl plan --ablate`
    """
    check_options(_given(locals()), tuple(sets or ()))
    from engine.plan.request import Request

    request = Request(
        model=recipe or model or "175b", gpus=gpus, cluster=cluster, batch=batch, seq=seq,
        precision=precision, system=system, sets=tuple(sets or ()), top=top, explain=explain,
        tokens=tokens, price_per_gpu_hour=price,
    )  # fmt: skip
    if validate is not None or calibrate is not None or ablate:
        _tables(ui, validate, calibrate, out, cluster)
    elif exhaustive or goodput or emit:
        _other(ui, request, exhaustive=exhaustive, emit=emit, days=days)
    else:
        _search(ui, request, trace=trace, plot=plot, schedule=schedule)


def _given(options: dict[str, object]) -> set[str]:
    """Names of the options that are not as they are by default."""
    known = inspect.signature(plan).parameters
    return {
        name
        for name, value in options.items()
        if name in known and value not in (known[name].default, None, [])
    }


def _tables(
    ui: Ui, validate: Path | None, calibrate: Path | None, out: Path | None, cluster: str
) -> None:
    """Predictions against measured or published numbers."""
    if validate is not None:
        from engine.plan.validate import validate as score

        ui.result(score(validate), show.show_validation)
    elif calibrate is not None:
        from engine.plan.adapt import adapt
        from engine.spec.load import load_cluster

        start = load_cluster(cluster) if cluster else None
        ui.result(adapt(calibrate, out, start), show.show_calibration)
    else:
        from engine.plan.paper import ladder

        ui.result(ladder(), show.show_ladder)


def _other(ui: Ui, request: "Request", *, exhaustive: bool, emit: str, days: float) -> None:
    """Answers other than the ranked table."""
    from engine.plan.request import make_exhaustive, make_goodput

    if emit:
        from engine.plan.emitted import make_emitted

        ui.result(make_emitted(request, emit, exhaustive=exhaustive), show.show_emitted)
    elif exhaustive:
        ui.result(make_exhaustive(request), show.show_exhausted)
    elif days:
        from engine.job.simulate import World, simulate
        from engine.plan.request import prepare

        room = prepare(request).job.cluster
        world = World(nodes=room.nodes, gpus_per_node=room.gpus_per_node, days=days,
                      price_per_gpu_h=request.price_per_gpu_hour)  # fmt: skip
        ui.result(simulate(world), show.show_months)
    else:
        ui.result(make_goodput(request), show.show_goodput)


def _search(
    ui: Ui, request: "Request", *, trace: Path | None, plot: Path | None, schedule: bool
) -> None:
    """The ranked table, and what is written of its winner."""
    from engine.plan.output import schedule_text, write_plot, write_trace
    from engine.plan.request import make_plan, prepare

    report: PlanReport = make_plan(request)
    ui.result(report, show.show_report)
    if report.candidates:
        best = report.candidates[0]
        if schedule and not ui.json:
            ui.line(schedule_text(best))
        for path, writer in ((trace, write_trace), (plot, write_plot)):
            if path is not None:
                written = writer(path, prepare(request).job, best.layout)
                ui.note(f"wrote {written.path}: {written.what}")
    ui.exit(verdict_bad=not report.candidates)
