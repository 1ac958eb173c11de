"""Bandwidth of RDMA cards inside one host, with perftest (paper 4.3, tests 1 and 2).

Loopback: every card to every memory node and every GPU. Card to card: every ordered pair. The
values form a matrix; a slow row is a bad card, a slow column a bad memory node or GPU, a single
slow cell the path between the two.
"""

import re
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from engine.errors import MissingError
from engine.health.look import Look, problem, settle
from engine.health.network import used
from engine.health.profile import Bar
from engine.health.result import CheckResult
from engine.units import show_bytes

_TIMEOUT_S = 30.0
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$", re.MULTILINE)
_ASYMMETRY = 0.10
_MIN_LINE_SHARE = 0.9


class Blame(NamedTuple):
    """What a matrix of rates says: the part, how many of its values are slow, the worst."""

    part: str
    slow: int
    of: int
    rate: float


def loopback(look: Look) -> list[CheckResult]:
    """Every RDMA card reaches every memory node and GPU of its host at line rate."""
    cards = _cards(look)
    places = [
        n for n in look.probe.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", n)
    ]
    rates: dict[tuple[str, str], float] = {}
    for card in cards:
        for place in places or ["node0"]:
            rates[card, place] = _measure(look, card, card, _numa(place))
    for gpu in range(_gpus(look)):
        for card in cards:
            rates[card, f"gpu{gpu}"] = _measure(look, card, card, f"--use_cuda={gpu}")
    return _judge(look, "net.loopback", rates)


def rnic_pairs(look: Look) -> list[CheckResult]:
    """Every RDMA card of the host reaches every other at line rate, in both directions alike."""
    cards = _cards(look)
    if len(cards) < 2:
        raise MissingError("only one RDMA card", remedy="nothing to do")
    rates = {(a, b): _measure(look, a, b, "") for a in cards for b in cards if a != b}
    judged = _judge(look, "net.rnic_pairs", rates)
    found = [r for r in judged if r.status != "ok"]
    for (a, b), rate in rates.items():
        back = rates[b, a]
        if a < b and abs(rate - back) > _ASYMMETRY * max(rate, back):
            found.append(problem(
                "warn", f"{a}<->{b}", f"{show_bytes(rate)}/s there, {show_bytes(back)}/s back",
                remedy="compare PCIe settings (relaxed ordering, MaxReadReq) of the two cards",
                action="watch", measured=min(rate, back), expected=max(rate, back), unit="B/s",
            ))  # fmt: skip
    return found or judged


def _cards(look: Look) -> list[str]:
    cards = sorted({p.device for p in used(look)})
    if not cards:
        raise MissingError("no RDMA network card", remedy="see net.state")
    return cards


def _gpus(look: Look) -> int:
    """GPUs that perftest can write to: none if it was built without CUDA."""
    ran = look.probe.run(("ib_write_bw", "--help"), timeout_s=5)
    if ran is None:
        raise MissingError("ib_write_bw is not installed", remedy="install the package perftest")
    if "use_cuda" not in ran.out:
        return 0
    try:
        return len(look.probe.gpus().present)
    except MissingError:
        return 0


def _numa(place: str) -> str:
    return f"numactl --cpunodebind={place[4:]} --membind={place[4:]}"


def _measure(look: Look, server: str, client: str, how: str) -> float:
    """Bytes per second of RDMA writes between two cards of this host."""
    wrap = f"{how} " if how.startswith("numactl") else ""
    option = f" {how}" if how.startswith("--") else ""
    common = f"{wrap}ib_write_bw --report_gbits -s 1048576 -D 2{option}"
    script = f"{common} -d {server} >/dev/null & sleep 0.5; {common} -d {client} localhost; wait"
    ran = look.probe.run(("sh", "-c", script), timeout_s=_TIMEOUT_S)
    return parse_perftest(ran.out) if ran is not None and ran.code == 0 else 0.0


def parse_perftest(text: str) -> float:
    """Average bytes per second from perftest's table (`--report_gbits`); 0 if there is none."""
    rows = _ROW.findall(text)
    return float(rows[-1][3]) * 1e9 / 8 if rows else 0.0


def _judge(look: Look, name: str, rates: Mapping[tuple[str, str], float]) -> list[CheckResult]:
    if not any(rates.values()):
        raise MissingError(
            "ib_write_bw measured nothing",
            remedy="install perftest and numactl, and check net.state",
        )
    bar = look.profile.bar(name) or _line_rate(look)
    found = []
    for blame in find_slow(rates, bar, look.profile.tolerance):
        found.append(problem(
            "fail", blame.part, f"{blame.slow} of {blame.of} paths are slow, worst "
            f"{show_bytes(blame.rate)}/s",
            remedy="reseat it and check its PCIe link; then take the node out", action="evict",
            measured=blame.rate, expected=bar.shown, unit="B/s", bar=bar.source,
        ))  # fmt: skip
    middle = statistics.median(rates.values())
    return settle(found, f"{len(rates)} paths, median {show_bytes(middle)}/s", measured=middle,
                  expected=bar.shown, unit="B/s")  # fmt: skip


def _line_rate(look: Look) -> Bar:
    gbps = look.profile.rnic_gbps or max((p.gbps for p in used(look)), default=0.0)
    return Bar(at_least=gbps * 1e9 / 8 * _MIN_LINE_SHARE, unit="B/s", source="90 % of line rate")


def find_slow(rates: Mapping[tuple[str, str], float], bar: Bar, tolerance: float) -> list[Blame]:
    """The parts that explain the slow cells of a matrix, rows and columns before single cells.

    A row or column is blamed if more than half of its cells are slow; what is left is a bad path.
    """
    middle = statistics.median(rates.values())
    slow = {k for k, v in rates.items() if not bar.holds(v) or v < middle * (1 - tolerance)}
    blamed: list[Blame] = []
    for side in (0, 1):
        for part in dict.fromkeys(k[side] for k in rates):
            cells = [k for k in rates if k[side] == part]
            hit = [k for k in cells if k in slow]
            if len(cells) > 1 and len(hit) * 2 > len(cells):
                blamed.append(Blame(part, len(hit), len(cells), min(rates[k] for k in hit)))
                slow -= set(hit)
    blamed += [Blame(f"{a}<->{b}", 1, 1, rates[a, b]) for a, b in sorted(slow)]
    return blamed
