"""How the results of `msctl selfcheck` are shown."""

import time

import msgspec

from engine.errors import RecipeError
from engine.health.fleet import FleetReport
from engine.health.history import Past
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
    ui.sentence(f"{report.node}: {report.machine}", f"{verdict}  ", style)
    ui.sentence(
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
        ui.sentence(f"{', '.join(checks)}: {reason}", "not looked at: ")


def show_fleet(ui: Ui, fleet: FleetReport, *, node: str = "", matrix: bool = False) -> None:
    """Bad nodes first, then what takes more than one node to see, then every node in a line."""
    seen = {n.node for n in fleet.nodes} | set(fleet.unfit)
    total = len(seen | {name for pair in fleet.pairs for name in pair.nodes})
    if fleet.unfit:
        bad_nodes = f"{len(fleet.unfit)} of {total} nodes: {' '.join(fleet.unfit)}"
        ui.sentence(bad_nodes, "UNFIT  ", "bold red")
    else:
        verdict = {"fail": "UNFIT TOGETHER", "error": "NOT SURE", "skip": "NOTHING"}
        ui.line(f"{verdict.get(fleet.status, 'FIT as far as looked at')}  {total} nodes",
                "bold green" if fleet.status in ("ok", "warn") else "bold red")  # fmt: skip
    ui.line(f"{show_seconds(fleet.seconds)}, {len(fleet.pairs)} pairs in {fleet.rounds} rounds")
    found = [(n.node, r) for n in fleet.nodes for r in bad(n.results)]
    found += [(r.target, r) for r in bad(fleet.group)]
    rows = [(r.status, name, r.check, r.target, r.message, r.action) for name, r in found]
    if rows:
        ui.table("Not well", ("status", "node", "check", "target", "what", "action"), rows)
    slow = [(" ".join(p.nodes), show_rate(p.bytes_per_s, "B/s"), p.why) for p in fleet.pairs
            if not p.is_well or ui.verbose]  # fmt: skip
    if slow:
        ui.table("Pairs", ("nodes", "all-reduce", "why it failed"), slow)
    if fleet.pairs and (matrix or ui.verbose):
        show_heat(ui, fleet)
    nodes = [(n.node, n.status, npd_line(n.results), str(fleet.past.get(n.node, "")), n.machine)
             for n in fleet.nodes]  # fmt: skip
    ui.table("Nodes", ("node", "status", "worst", "unfit in 30 days", "machine"), nodes)
    for reason, checks in skipped([r for n in fleet.nodes for r in n.results]):
        ui.sentence(f"{', '.join(dict.fromkeys(checks))}: {reason}", "not looked at: ")
    if node:
        ui.line()
        show_report(ui, node_of(fleet, node))


def show_heat(ui: Ui, fleet: FleetReport) -> None:
    """Bandwidth of each tested pair: in tenths of the best on a terminal, else in B/s."""
    rates = {frozenset(p.nodes): p for p in fleet.pairs if len(p.nodes) == 2}
    names = sorted({name for pair in rates for name in pair})
    best = max((p.bytes_per_s for p in rates.values()), default=0.0)

    def cell(a: str, b: str) -> str:
        pair = rates.get(frozenset((a, b)))
        if pair is None or a == b:
            return "."
        if not pair.bytes_per_s:
            return "x"
        return (
            str(min(9, int(10 * pair.bytes_per_s / best)))
            if ui.is_terminal
            else (f"{pair.bytes_per_s:.4g}")
        )

    if not ui.is_terminal:
        rows = [(a, *(cell(a, b) for b in names)) for a in names]
        ui.table("All-reduce of pairs (B/s)", ("node", *names), rows)
        return
    best_rate = show_rate(best, "B/s")
    ui.sentence(f"Heat map of pairs: 9 is {best_rate}, a digit a tenth; x failed, . not tested")
    width = max(map(len, names))
    for a in names:
        ui.line(f"{a:<{width}}  {''.join(cell(a, b) for b in names)}")


def node_of(fleet: FleetReport, name: str) -> NodeReport:
    """The report of one node of a fleet, with what only the others could see."""
    report = next((n for n in fleet.nodes if n.node == name), None)
    about = tuple(r for r in fleet.group if name in r.target.split("<->"))
    if report is None and not about:
        names = " ".join(n.node for n in fleet.nodes)[:200]
        raise RecipeError(f"there is no node {name!r} in the report", remedy=f"give one of {names}")
    if report is None:
        return NodeReport(node=name, machine="did not report", profile="", level="", time_s=0.0,
                          seconds=0.0, results=about)  # fmt: skip
    return msgspec.structs.replace(report, results=(*about, *report.results))


def show_history(ui: Ui, looks: list[Past]) -> None:
    """One row a look."""
    rows = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(p.time_s)), p.node, p.level, p.status,
         p.worst)
        for p in looks
    ]  # fmt: skip
    ui.table("Looks", ("time (UTC)", "node", "level", "status", "worst"), rows)


def show_line(ui: Ui, report: NodeReport) -> None:
    """One line, as monitoring systems want it."""
    ui.line(npd_line(report.results))


def show_list(ui: Ui, rows: list[tuple[str, str, str, float, str]]) -> None:
    """One row a check."""
    ui.table("Checks", ("check", "suite", "level", "deadline (s)", "what it looks at"), rows)


def show_rate(value: float, unit: str) -> str:
    """A measured rate with the unit that reads best."""
    return f"{show_bytes(value)}/s" if unit == "B/s" else show_count(value, unit)
