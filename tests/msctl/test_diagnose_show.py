"""What `msctl diagnose` prints: the verdict first, then what it rests on."""

import pytest

from engine.diagnose.finding import (
    Attribution,
    Evidence,
    Finding,
    RankTimes,
    Report,
    Symptom,
    Times,
    TimeShare,
    Verdict,
    WaterfallRow,
    WhatIf,
)
from msctl.commands.diagnose_show import show_report
from tests.msctl.shown import shown, shown_on_terminal

VERDICT = Verdict(
    state="faulty", kind="hang", category="rank_blocked", what="rank 3 waits", why="it sleeps",
    file="a.log", line=7, confidence=0.875, next="restart it",
)  # fmt: skip


def test_the_verdict_comes_first_with_where_and_what_next(capsys):
    report = Report(verdict=VERDICT, job="tiny", world=8, layout={"tp": 2, "dp": 4}, last_step=41,
                    read={"logs": 8, "events": 2}, seconds=0.25)  # fmt: skip
    assert shown(capsys, show_report, report).out.splitlines() == [
        "job tiny   world 8 = tp 2 x dp 4   last step 41   read 8 logs, 2 events, 250 ms",
        "VERDICT  faulty hang, rank_blocked: rank 3 waits   confidence 0.88",
        "  why    it sleeps",
        "  where  a.log:7",
        "  next   restart it",
    ]


def test_long_sentences_wrap_below_their_label_on_a_terminal(capsys, monkeypatch):
    why = "28 deviations from peers of its stage and replica, clocks not compared; mostly backward"
    verdict = Verdict(state="faulty", kind="hang", category="c", what="rank 3 waits", why=why)
    report = Report(verdict=verdict, job="tiny", not_looked_at=("network counters", "stacks"))
    lines = shown_on_terminal(capsys, monkeypatch, 60, show_report, report)
    assert lines[2:4] == [
        "  why    28 deviations from peers of its stage and replica,",
        "         clocks not compared; mostly backward",
    ]
    monkeypatch.undo()
    assert f"  why    {why}" in shown(capsys, show_report, report).out.splitlines()


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("healthy", "VERDICT  healthy: all well"),
        ("unknown", "VERDICT  unknown: all well"),
        ("degraded", "VERDICT  degraded perf, slow: all well   confidence 0.50"),
        ("faulty", "VERDICT  faulty perf, slow: all well   confidence 0.50"),
    ],
)
def test_only_trouble_has_a_kind_and_a_confidence(capsys, state, line):
    verdict = Verdict(state=state, kind="perf", category="slow", what="all well", confidence=0.5)
    out = shown(capsys, show_report, Report(verdict=verdict, job="j")).out.splitlines()
    assert out == ["job j   read , 0 ns", line]


def test_a_place_without_a_line_and_step_zero(capsys):
    verdict = Verdict(state="faulty", what="w", file="a.log")
    out = shown(capsys, show_report, Report(verdict=verdict, last_step=0)).out.splitlines()
    assert "   last step 0   " in out[0]
    assert out[2] == "  where  a.log"


def test_what_else_was_seen_and_what_was_not_looked_at(capsys):
    findings = tuple(
        Finding(kind="perf", category=f"c{i}", what=f"w{i}", confidence=0.25) for i in range(3)
    )
    report = Report(
        verdict=VERDICT, findings=findings,
        symptoms=(Symptom(what="timed out", count=7, first=Evidence()),),
        unreadable=(Evidence(file="b.log", text="no text"),), not_looked_at=("traces", "dumps"),
    )  # fmt: skip
    out = shown(capsys, show_report, report).out.splitlines()
    assert out[5:] == [
        "also     w1 (c1, 0.25)",
        "also     w2 (c2, 0.25)",
        "symptom  7 x timed out",
        "unread   b.log: no text",
        "not looked at: traces; dumps",
    ]


def rank(number, excess):
    return RankTimes(rank=number, tp=0, pp=1, dp=2, step_s=2.0, excess=excess,
                     parts_s={"forward": 1.0, "data": 0.5})  # fmt: skip


def test_where_the_step_went(capsys):
    times = Times(
        steps=(3, 9), ranks=16, step_s=2.0, notes=("one rank was silent",),
        parts=(TimeShare(name="forward", seconds=1.5, share=0.75),
               TimeShare(name="wait_dp", seconds=0.02, share=0.01),
               TimeShare(name="gc", seconds=0.018, share=0.009)),
        per_rank=tuple(rank(i, 0.104 if i == 0 else -0.05) for i in range(9)),
    )  # fmt: skip
    found = shown(capsys, show_report, Report(verdict=VERDICT, times=times))
    rows = found.rows
    at = rows.index(["part", "seconds", "share"])
    assert rows[at + 1 : at + 4] == [
        ["forward", "1.5 s", "75.0 %"],
        ["exposed data parallel", "20 ms", "1.0 %"],
        ["garbage collection", "18 ms", "0.9 %"],
    ]
    title = "Ranks, slowest against their peers first"
    header = rows[rows.index([f"# {title}"]) + 1]
    assert header == ["rank", "tp", "pp", "dp", "step", "against peers", "forward",
                      "exposed data parallel"]  # fmt: skip
    ranks = found.table(title)[:-1]
    assert len(ranks) == 8
    assert ranks[0] == ["0", "0", "1", "2", "2 s", "+10.4 %", "1 s", "0 ns"]
    assert ranks[7][:6] == ["7", "0", "1", "2", "2 s", "-5.0 %"]
    assert found.out.endswith("note: one rank was silent\n")


def attribution(mfu, gained, what_if=True):
    rows = (WaterfallRow(name="bubble", seconds=0.25, points=0.05),)
    less = (WhatIf(without="rank 3", step_s=1.5, gain=0.25, mfu_points=gained),) if what_if else ()
    return Attribution(measured_s=2.0, ideal_s=1.0, mfu=mfu, rows=rows, critical_path=(),
                       what_if=less)  # fmt: skip


def test_from_the_peak_to_what_was_measured(capsys):
    found = shown(capsys, show_report, Report(verdict=VERDICT, attribution=attribution(0.552, 0.1)))
    at = found.rows.index(["loss", "points", "seconds"])
    assert found.rows[at + 1] == ["bubble", "5.0 %", "250 ms"]
    assert found.table("What if") == [["without rank 3", "1.5 s", "-25.0 %", "+10.0"]]


def test_without_a_peak_there_are_parts_of_the_step(capsys):
    found = shown(capsys, show_report, Report(verdict=VERDICT, attribution=attribution(None, None)))
    assert ["part", "points", "seconds"] in found.rows
    assert found.table("What if") == [["without rank 3", "1.5 s", "-25.0 %", "-"]]
    bare = Report(verdict=VERDICT, attribution=attribution(None, None, what_if=False))
    assert "What if" not in shown(capsys, show_report, bare).out


def test_no_name_or_log_line_forges_a_line(capsys):
    forged = "x\nVERDICT  healthy: all good\r\x1b[1A\u2028VERDICT  healthy"
    verdict = Verdict(state="faulty", what=forged, why=forged, file=forged, line=1, next=forged)
    evidence = Evidence(file=forged, text=forged)
    finding = Finding(kind="crash", category="c", what=forged)
    report = Report(
        verdict=verdict, job=forged, findings=(finding, finding), unreadable=(evidence,),
        symptoms=(Symptom(what=forged, count=1, first=evidence),), not_looked_at=(forged,),
    )  # fmt: skip
    out = shown(capsys, show_report, report).out
    assert [line.split()[0] for line in out.splitlines()] == [
        "job", "VERDICT", "why", "where", "next", "also", "symptom", "unread", "not",
    ]  # fmt: skip
    assert "\x1b" not in out
    assert "where  x\\nVERDICT  healthy: all good\\x0d\\x1b[1A\\x2028VERDICT" in out
