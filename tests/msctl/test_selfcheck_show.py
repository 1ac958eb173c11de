"""What `msctl selfcheck --on` prints."""

from engine.health.fleet import FleetReport, PairRate
from engine.health.result import CheckResult, NodeReport
from msctl.commands.selfcheck_show import show_fleet, show_rate, show_report
from msctl.ui import Ui
from tests.msctl.shown import shown_on_terminal


def node(name, status):
    result = CheckResult(check="gpu.ecc", target="gpu3", status=status, message="2 errors")
    return NodeReport(node=name, machine="8 GPUs", profile="p", level="passive", time_s=0,
                      seconds=1,
                      results=(result,))  # fmt: skip


def test_unfit_nodes_come_first_with_what_they_have(capsys):
    pairs = (PairRate(nodes=("a", "b"), is_well=False, why="timed out"),)
    show_fleet(Ui(), FleetReport(seconds=3, nodes=(node("b", "fail"), node("a", "ok")), pairs=pairs,
                                 unfit=("b",), rounds=2))  # fmt: skip
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "UNFIT  1 of 2 nodes: b"
    assert out[1] == "3 s, 1 pairs in 2 rounds"
    assert "fail\tb\tgpu.ecc\tgpu3\t2 errors\tnone" in out
    assert "a b\t0 B/s\ttimed out" in out


def test_a_healthy_fleet_says_so(capsys):
    show_fleet(Ui(), FleetReport(seconds=3, nodes=(node("a", "ok"),)))
    assert capsys.readouterr().out.startswith("FIT as far as looked at  1 nodes")


def test_rates_have_units():
    assert show_rate(1 << 30, "B/s") == "1.00 GiB/s"
    assert show_rate(7e14, "FLOP/s") == "700 TFLOP/s"


def test_what_was_not_looked_at_wraps_at_word_ends_on_a_terminal(capsys, monkeypatch):
    skips = tuple(
        CheckResult(check=f"gpu.check{i}", status="skip", message="no library") for i in range(12)
    )
    report = NodeReport(node="n", machine="8 GPUs", profile="p", level="passive", time_s=0,
                        seconds=1, results=skips)  # fmt: skip
    lines = shown_on_terminal(capsys, monkeypatch, 60, show_report, report)
    first = next(i for i, line in enumerate(lines) if line.startswith("not looked at: gpu.check0,"))
    assert lines[first + 1].startswith(" " * 15 + "gpu.check")
    assert max(map(len, lines)) <= 60
