"""`msctl selfcheck`: say whether this machine, or each of many, is fit to train."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from engine.health.result import Convention, NodeReport, bad, count, exit_code, npd_line, skipped
from engine.units import show_bytes, show_count, show_seconds
from msctl.flags import CONTEXT, Flags, command_flags
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.health.fleet import FleetReport

_VERDICTS = {"fail": "UNFIT", "error": "NOT SURE", "warn": "FIT, with warnings,", "ok": "FIT",
             "skip": "NOTHING"}  # fmt: skip
Where = Literal["local", "hosts", "slurm"]
Level = Literal["passive", "light", "full"]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="CHECK", help="Only this check, or all of `gpu`, `host`, `net`."
    ),
]


def _run(
    ui: Ui,
    level: Annotated[
        Level, typer.Option(help="passive: 2 s, safe beside a job; light: a minute; full: all.")
    ] = "passive",
    only: Only = None,
    list_: Annotated[bool, typer.Option("--list", help="List all checks and run none.")] = False,
    profile: Annotated[str, typer.Option(help="Machine type (default: by the GPU's name).")] = "",
    profiles: Annotated[
        Path | None, typer.Option(help="TOML file of more machine types.", dir_okay=False)
    ] = None,
    since: Annotated[
        float, typer.Option(help="Kernel log of the last so many seconds; 0: since boot.", min=0)
    ] = 0.0,
    folder: Annotated[Path, typer.Option(help="Where disk checks write.")] = Path("/tmp"),
    state: Annotated[
        Path | None, typer.Option(help="Folder for counters between looks (default: the user's).")
    ] = None,
    exit_: Annotated[
        Convention, typer.Option("--exit", help="Exit codes: of msctl, of Nagios, or of NPD.")
    ] = "house",
    prometheus: Annotated[
        Path | None, typer.Option(help="Also write a textfile for node_exporter.", dir_okay=False)
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Also write all that was read from the machine.")
    ] = None,
    recording: Annotated[
        Path | None, typer.Option(help="Check a recorded machine instead of this one.")
    ] = None,
    on: Annotated[
        Where | None, typer.Option(help="Check many nodes: local agents, ssh hosts, or Slurm.")
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(help="For --on hosts: one node a line, with its switch.")
    ] = None,
    job: Annotated[str, typer.Option(help="For --on slurm: id of a running job.")] = "",
    agents: Annotated[int, typer.Option(help="For --on local: how many.", min=1, max=64)] = 4,
    redis: Annotated[str, typer.Option(help="Use this Redis instead of a private one.")] = "",
    pairs: Annotated[bool, typer.Option(help="With --on: test nodes with neighbours.")] = True,
    bisect: Annotated[bool, typer.Option(help="With --on: halve groups that fail.")] = False,
    exclude_file: Annotated[
        Path | None, typer.Option(help="With --on: write unfit nodes, one a line.")
    ] = None,
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
    from engine.health.allocation import Allocation, check_allocation
    from engine.health.export import write_prometheus, write_recording
    from engine.health.fleet import Plan
    from engine.health.node import Wish, listed, revisit, visit
    from engine.health.probe import RealProbe
    from engine.health.profile import load_profiles
    from engine.health.recording import read_recording

    if list_:
        ui.result(listed(only or ()), show_list)
        return
    if on is not None:
        plan = Plan(
            level=level, only=tuple(only or ()), profile=profile, pairs=pairs, bisect=bisect
        )
        fleet = check_allocation(
            Allocation(where=on, hosts=hosts, job=job, agents=agents, redis=redis), plan,
            profiles=profiles, say=ui.note,
        )  # fmt: skip
        if exclude_file is not None:
            exclude_file.write_text("".join(f"{node}\n" for node in fleet.unfit))
            ui.note(f"wrote {exclude_file}")
        ui.result(fleet, show_fleet)
        _end(exit_code((*fleet.group, *(r for n in fleet.nodes for r in n.results)), exit_))
        return
    wish = Wish(
        level=level, only=tuple(only or ()), profile=profile, window_s=since, folder=str(folder),
        profiles=load_profiles(profiles) if profiles else (), state=state or _state_folder(),
        record=record is not None,
    )  # fmt: skip
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
    ui.result(report, show_report if exit_ == "house" else show_line)
    _end(exit_code(report.results, exit_))


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
    - `msctl selfcheck --on hosts --hosts nodes.txt --exclude-file bad.txt`
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


def show_report(ui: Ui, report: NodeReport) -> None:
    """The verdict first, then what is not well, then what was measured and what was left out."""
    seen = count(report.results)
    verdict = _VERDICTS[report.status]
    style = "bold green" if report.status in ("ok", "warn") else "bold red"
    looked = sum(seen.values()) - seen["skip"]
    if seen["skip"]:
        verdict += f" as far as looked at ({looked} of {sum(seen.values())} results)"
    ui.line(f"{verdict}  {report.node}: {report.machine}", style)
    ui.line(
        f"profile {report.profile}, {report.level}, {show_seconds(report.seconds)}: "
        + ", ".join(f"{number} {status}" for status, number in seen.items() if number)
    )
    rows = [
        (r.status, r.check, r.target, r.message, r.action, r.remedy) for r in bad(report.results)
    ]
    if rows:
        ui.table("Not well", ("status", "check", "target", "what", "action", "remedy"), rows)
    well = [r for r in report.results if r.status == "ok"]
    if well and (ui.verbose or not rows):
        ui.table(
            "Well", ("check", "target", "what"), [(r.check, r.target, r.message) for r in well]
        )
    for reason, checks in skipped(report.results):
        ui.line(f"not looked at: {', '.join(checks)}: {reason}")


def show_fleet(ui: Ui, fleet: "FleetReport") -> None:
    """Bad nodes first, then what takes more than one node to see, then every node in a line."""
    total = len(fleet.nodes)
    if fleet.unfit:
        ui.line(f"UNFIT  {len(fleet.unfit)} nodes: {' '.join(fleet.unfit)}", "bold red")
    else:
        ui.line(f"FIT as far as looked at  {total} nodes", "bold green")
    ui.line(f"{show_seconds(fleet.seconds)}, {len(fleet.pairs)} pairs in {fleet.rounds} rounds")
    found = [(n.node, r) for n in fleet.nodes for r in bad(n.results)]
    found += [(r.target, r) for r in bad(fleet.group)]
    rows = [(r.status, node, r.check, r.target, r.message, r.action) for node, r in found]
    if rows:
        ui.table("Not well", ("status", "node", "check", "target", "what", "action"), rows)
    slow = [(" ".join(p.nodes), show_rate(p.bytes_per_s, "B/s"), p.why) for p in fleet.pairs
            if not p.is_well or ui.verbose]  # fmt: skip
    if slow:
        ui.table("Pairs", ("nodes", "all-reduce", "why it failed"), slow)
    nodes = [(n.node, n.status, npd_line(n.results), n.machine) for n in fleet.nodes]
    ui.table("Nodes", ("node", "status", "worst", "machine"), nodes)


def show_line(ui: Ui, report: NodeReport) -> None:
    """One line, as monitoring systems want it."""
    ui.line(npd_line(report.results))


def show_list(ui: Ui, rows: list[tuple[str, str, str, float, str]]) -> None:
    """One row a check."""
    ui.table("Checks", ("check", "suite", "level", "deadline (s)", "what it looks at"), rows)


def show_rate(value: float, unit: str) -> str:
    """A measured rate with the unit that reads best."""
    return f"{show_bytes(value)}/s" if unit == "B/s" else show_count(value, unit)


def _state_folder() -> Path:
    """Where counters rest between looks: the system's place for root, else the user's."""
    if os.geteuid() == 0:
        return Path("/var/lib/msctl")
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home, "msctl")


def _end(code: int) -> None:
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
