"""How the results of `msctl selfcheck` are shown."""

from engine.health.fleet import FleetReport
from engine.health.result import NodeReport, bad, count, npd_line, skipped
from engine.units import show_bytes, show_count, show_seconds
from msctl.ui import Ui

_VERDICTS = {"fail": "UNFIT", "error": "NOT SURE", "warn": "FIT, with warnings,", "ok": "FIT",
             "skip": "NOTHING"}  # fmt: skip


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


def show_fleet(ui: Ui, fleet: FleetReport) -> None:
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
