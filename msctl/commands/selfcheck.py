"""`msctl selfcheck`: say whether this machine, or each of many, is fit to train."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from engine.health.result import CheckResult, Convention, NodeReport, exit_code
from msctl.commands.selfcheck_show import show_fleet, show_line, show_list, show_report
from msctl.flags import CONTEXT, Flags, command_flags
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.health.allocation import Allocation
    from engine.health.fleet import Plan
    from engine.health.node import Wish

Where = Literal["local", "hosts", "slurm"]
Level = Literal["passive", "light", "full"]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="CHECK", help="Only this check, or all of `gpu`, `host`, `net`."
    ),
]


Many = Annotated[
    Where | None,
    typer.Option("--on", help="Check many nodes: local agents, ssh hosts, or Slurm."),
]
Profiles = Annotated[
    Path | None, typer.Option(help="TOML file of more machine types.", dir_okay=False)
]
Since = Annotated[
    float, typer.Option(help="Kernel log of the last so many seconds; 0: since boot.", min=0)
]
State = Annotated[
    Path | None, typer.Option(help="Folder for counters between looks (default: the user's).")
]
Exit = Annotated[
    Convention, typer.Option("--exit", help="Exit codes: of msctl, of Nagios, or of NPD.")
]
Prometheus = Annotated[
    Path | None, typer.Option(help="Also write a textfile for node_exporter.", dir_okay=False)
]
Record = Annotated[Path | None, typer.Option(help="Also write all that was read from the machine.")]
Recorded = Annotated[
    Path | None, typer.Option(help="Check a recorded machine instead of this one.")
]
Hosts = Annotated[
    Path | None, typer.Option(help="For --on hosts: one node a line, with its switch.")
]
Exclude = Annotated[Path | None, typer.Option(help="With --on: write unfit nodes, one a line.")]
Depth = Annotated[
    Level, typer.Option(help="passive: 2 s, safe beside a job; light: a minute; full: all.")
]


def _run(
    ui: Ui,
    level: Depth = "passive",
    only: Only = None,
    list_: Annotated[bool, typer.Option("--list", help="List all checks and run none.")] = False,
    profile: Annotated[str, typer.Option(help="Machine type (default: by the GPU's name).")] = "",
    profiles: Profiles = None,
    since: Since = 0.0,
    folder: Annotated[Path, typer.Option(help="Where disk checks write.")] = Path("/tmp"),
    state: State = None,
    exit_: Exit = "house",
    prometheus: Prometheus = None,
    record: Record = None,
    recording: Recorded = None,
    on: Many = None,
    hosts: Hosts = None,
    job: Annotated[str, typer.Option(help="For --on slurm: id of a running job.")] = "",
    agents: Annotated[int, typer.Option(help="For --on local: how many.", min=1, max=64)] = 4,
    redis: Annotated[str, typer.Option(help="Use this Redis instead of a private one.")] = "",
    pairs: Annotated[bool, typer.Option(help="With --on: test nodes with neighbours.")] = True,
    bisect: Annotated[bool, typer.Option(help="With --on: halve groups that fail.")] = False,
    exclude_file: Exclude = None,
) -> None:
    """Check whether this machine is fit to train, or with --on each machine of many.

    Prints what is wrong and what to do, and how much could not be looked at. Exit code 0: nothing
    failed, 4: something did or could not be decided, 5: nothing could be looked at.

    Examples:
    - `msctl selfcheck`
    - `msctl selfcheck --level light --only gpu`
    - `msctl selfcheck --json --exit nagios`
    - `msctl selfcheck --on hosts --hosts nodes.txt --exclude-file bad.txt`
    - `msctl selfcheck learn healthy/*.json --name site-h100`
    """
    from engine.health.allocation import Allocation
    from engine.health.fleet import Plan
    from engine.health.node import Wish, listed
    from engine.health.profile import load_profiles

    names = tuple(only or ())
    if list_:
        ui.result(listed(names), show_list)
    elif on is not None:
        plan = Plan(level=level, only=names, profile=profile, pairs=pairs, bisect=bisect)
        where = Allocation(where=on, hosts=hosts, job=job, agents=agents, redis=redis)
        _end(_many(ui, where, plan, profiles, exclude_file), exit_)
    else:
        known = load_profiles(profiles) if profiles else ()
        wish = Wish(level, names, profile, known, since, str(folder), state or _state_folder(),
                    record=record is not None)  # fmt: skip
        report = _one(ui, wish, recording, record, prometheus)
        ui.result(report, show_report if exit_ == "house" else show_line)
        _end(report.results, exit_)


def _one(
    ui: Ui, wish: "Wish", recording: Path | None, record: Path | None, prometheus: Path | None
) -> NodeReport:
    """The report of this machine, or of a recorded one."""
    from engine.health.export import write_prometheus, write_recording
    from engine.health.node import revisit, visit
    from engine.health.probe import RealProbe
    from engine.health.recording import read_recording

    if recording is not None:
        report = revisit(read_recording(recording), wish)
    else:
        probe = RealProbe(env=os.environ, node=os.environ.get("SLURMD_NODENAME", ""))
        report, taken = visit(probe, wish)
        if record is not None and taken is not None:
            write_recording(record, taken)
            ui.note(f"wrote {record}")
    if prometheus is not None:
        write_prometheus(prometheus, report)
    return report


def _many(
    ui: Ui, where: "Allocation", plan: "Plan", profiles: Path | None, exclude: Path | None
) -> list[CheckResult]:
    """Every node of an allocation; what was found on all of them and between them."""
    from engine.health.allocation import check_allocation

    fleet = check_allocation(where, plan, profiles=profiles, say=ui.note)
    if exclude is not None:
        exclude.write_text("".join(f"{node}\n" for node in fleet.unfit), encoding="utf-8")
        ui.note(f"wrote {exclude}")
    ui.result(fleet, show_fleet)
    return [*fleet.group, *(r for node in fleet.nodes for r in node.results)]


def learn(
    ui: Ui,
    reports: Annotated[list[Path], typer.Argument(help="Reports of healthy nodes (--json).")],
    name: Annotated[str, typer.Option(help="Name of the machine type.")] = "learned",
    match: Annotated[str, typer.Option(help="Part of the GPU's name that selects it.")] = "",
    base: Annotated[str, typer.Option(help="Machine type to start from.")] = "",
    out: Annotated[Path | None, typer.Option(help="File to write (default: show it).")] = None,
) -> None:
    """Learn a machine type from reports of healthy nodes.

    Bars are the median of the fleet less its spread, so that the slowest healthy node passes.

    Examples:
    - `msctl selfcheck learn healthy/*.json --name site-h100 --base h100-nvl8 --out site.toml`
    """
    from engine.health.export import read_reports
    from engine.health.learn import learn_profile

    text = learn_profile(read_reports(reports), name=name, match=match, base=base)
    if out is None:
        ui.result(text, lambda ui, text: ui.line(text))
    else:
        out.write_text(text, encoding="utf-8")
        ui.note(f"wrote {out}; use it with --profiles {out} --profile {name}")


def _state_folder() -> Path:
    """Where counters rest between looks: the system's place for root, else the user's."""
    if os.geteuid() == 0:
        return Path("/var/lib/msctl")
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home, "msctl")


def _end(results: Sequence[CheckResult], convention: Convention) -> None:
    code = exit_code(results, convention)
    if code:
        raise typer.Exit(code)


def _command() -> typer.Typer:
    """A command that runs by itself and has sub-commands beside it."""
    made = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT, add_completion=False,
                       pretty_exceptions_enable=False)  # fmt: skip
    check = command_flags(_run)

    def root(ctx: typer.Context, **given: Any) -> None:
        if ctx.invoked_subcommand is not None:
            ctx.obj = Flags(json=given["json"], quiet=given["quiet"], verbose=given["verbose"])
            return
        check(ctx=ctx, **given)

    root.__doc__ = _run.__doc__
    root.__signature__ = check.__signature__  # type: ignore[attr-defined]
    root.__annotations__ = check.__annotations__
    made.callback(invoke_without_command=True)(root)
    made.command("learn")(command_flags(learn))
    return made


selfcheck = _command()
