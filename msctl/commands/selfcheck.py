"""`msctl selfcheck`: say whether this machine, or each of many, is fit to train."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.health.result import CheckResult, Convention, NodeReport, exit_code
from msctl.commands.selfcheck_options import (
    Depth,
    Exclude,
    Exit,
    Folder,
    Hosts,
    Many,
    Matrix,
    Node,
    Only,
    Profiles,
    Prometheus,
    Record,
    Recorded,
    Redis,
    Selector,
    Since,
    State,
    Suites,
    Together,
    refuse_fleet_options,
    refuse_node_options,
)
from msctl.commands.selfcheck_show import (
    node_of,
    show_fleet,
    show_history,
    show_line,
    show_list,
    show_report,
)
from msctl.flags import CONTEXT, Flags, command_flags
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.health.allocation import Allocation
    from engine.health.fleet import FleetReport, Plan
    from engine.health.node import Wish


def _run(
    ui: Ui,
    level: Depth = None,
    only: Only = None,
    list_: Annotated[bool, typer.Option("--list", help="List all checks and run none.")] = False,
    profile: Annotated[str, typer.Option(help="Machine type (default: by the GPU's name).")] = "",
    profiles: Profiles = None,
    since: Since = 0.0,
    folder: Folder = None,
    state: State = None,
    exit_: Exit = "house",
    prometheus: Prometheus = None,
    record: Record = None,
    recording: Recorded = None,
    on: Many = None,
    hosts: Hosts = None,
    suite: Suites = None,
    job: Annotated[str, typer.Option(help="For --on slurm: id of a running job.")] = "",
    selector: Selector = "",
    namespace: Annotated[str, typer.Option(help="For --on k8s: namespace of the pods.")] = "",
    agents: Annotated[int, typer.Option(help="For --on local: how many.", min=1, max=64)] = 4,
    redis: Redis = "",
    all_pairs: Matrix = False,
    bisect: Together = False,
    node: Node = "",
    exclude_file: Exclude = None,
) -> None:
    """Check whether this machine is fit to train, or with --on each machine of many.

    Prints what is wrong and what to do, and how much could not be looked at. Exit code 0: nothing
    failed, 4: something did or could not be decided, 5: nothing could be looked at.

    Examples:
    - `msctl selfcheck`
    - `msctl selfcheck --level light --only gpu`
    - `msctl selfcheck --json --exit nagios`
    - `msctl selfcheck --only init`
    - `msctl selfcheck --on hosts --hosts nodes.txt --exclude-file bad.txt`
    - `msctl selfcheck --on slurm --job 4242 --suite pair --all-pairs`
    - `msctl selfcheck learn healthy/*.json --name site-h100`
    """
    from engine.health.allocation import Allocation
    from engine.health.fleet import Plan
    from engine.health.node import Wish, listed
    from engine.health.profile import load_profiles

    names = tuple(name for given in only or () for name in given.split(",") if name)
    suites = {one.value for one in suite or ()}
    home = state or _state_folder()
    if list_:
        ui.result(listed(names, level), show_list)
        return
    _check_places(state, folder if recording is None else None)
    if on is not None:
        refuse_node_options(bool(folder or since or record or recording or prometheus))
        plan = Plan(
            level=level, only=names, profile=profile, alone=not suites or "node" in suites,
            pairs=not suites or "pair" in suites, bisect=bisect or "group" in suites,
            all_pairs=all_pairs,
        )  # fmt: skip
        where = Allocation(where=on, hosts=hosts, job=job, agents=agents, redis=redis,
                           selector=selector, namespace=namespace)  # fmt: skip
        fleet = _many(ui, where, plan, profiles, exclude_file, home)
        ui.result(fleet, partial(show_fleet, node=node, matrix=all_pairs))
        _end([*fleet.group, *(r for one in fleet.nodes for r in one.results)], exit_)
    else:
        refuse_fleet_options(suites, bool(exclude_file or node or all_pairs or bisect or hosts))
        known = load_profiles(profiles) if profiles else ()
        wish = Wish(level, names, profile, known, since, str(folder or "/tmp"), home,
                    record=record is not None)  # fmt: skip
        report = _one(ui, wish, recording, record, prometheus)
        ui.result(report, show_report if exit_ == "house" else show_line)
        _end(report.results, exit_)


def _check_places(state: Path | None, folder: Path | None) -> None:
    """Folders that were given by hand can be used, whatever checks will run."""
    from engine.health.look import check_folder, check_state

    if state is not None:
        check_state(state)
    if folder is not None:
        check_folder(folder)


def _one(
    ui: Ui, wish: "Wish", recording: Path | None, record: Path | None, prometheus: Path | None
) -> NodeReport:
    """The report of this machine, or of a recorded one."""
    from engine.health.export import write_prometheus, write_recording
    from engine.health.history import remember
    from engine.health.node import revisit, visit
    from engine.health.probe import RealProbe
    from engine.health.recording import read_recording

    if recording is not None:
        report = revisit(read_recording(recording), wish)
    else:
        probe = RealProbe(env=os.environ, node=os.environ.get("SLURMD_NODENAME", ""))
        report, taken = visit(probe, wish)
        if wish.state is not None and not remember(wish.state, [report]):
            ui.warn(
                f"{wish.state} cannot be written: the next look has no counters to compare with"
            )
        if record is not None and taken is not None:
            write_recording(record, taken)
            ui.note(f"wrote {record}")
    if prometheus is not None:
        write_prometheus(prometheus, report)
    return report


def _many(
    ui: Ui,
    where: "Allocation",
    plan: "Plan",
    profiles: Path | None,
    exclude: Path | None,
    state: Path,
) -> "FleetReport":
    """Every node of an allocation, with what is remembered of each."""
    import msgspec

    from engine.health.allocation import check_allocation
    from engine.health.export import write_nodes
    from engine.health.history import lemons, recall, remember

    fleet = check_allocation(where, plan, profiles=profiles, say=ui.note)
    past = lemons(recall(state))
    names = {node.node for node in fleet.nodes} | set(fleet.unfit)
    fleet = msgspec.structs.replace(fleet, past={n: c for n, c in past.items() if n in names})
    if not remember(state, fleet.nodes):
        ui.warn(f"{state} cannot be written: this look will not be in the history")
    if exclude is not None:
        write_nodes(exclude, fleet.unfit)
        ui.note(f"wrote {exclude}")
    return fleet


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


def history(
    ui: Ui,
    node: Annotated[str, typer.Argument(help="Name of a node (default: all).")] = "",
    state: State = None,
) -> None:
    """Show what earlier looks at a node found, oldest first.

    Examples:
    - `msctl selfcheck history`
    - `msctl selfcheck history node17 --json`
    """
    from engine.health.history import recall

    looks = recall(state or _state_folder(), node)
    if not looks:
        ui.note("no looks are remembered" + (f" at {node}" if node else ""))
    ui.result(looks, show_history)


def show(
    ui: Ui,
    report: Annotated[Path, typer.Argument(help="Report of a check with --json.", dir_okay=False)],
    node: Annotated[str, typer.Option(help="Only this node of a fleet, with all results.")] = "",
) -> None:
    """Show a report that was written with --json, or one node of it.

    Examples:
    - `msctl selfcheck show fleet.json --node node17`
    """
    from engine.health.export import read_report

    found = read_report(report)
    if isinstance(found, NodeReport):
        ui.result(found, show_report)
    elif node:
        ui.result(node_of(found, node), show_report)
    else:
        ui.result(found, show_fleet)


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
    for name, function in (("learn", learn), ("history", history), ("show", show)):
        made.command(name)(command_flags(function))
    return made


selfcheck = _command()
