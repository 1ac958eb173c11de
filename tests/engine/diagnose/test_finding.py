"""The nouns of a diagnosis survive JSON and refuse what they do not know."""

import msgspec
import pytest

from engine.diagnose.finding import Evidence, Finding, Report, Verdict

FINDING = Finding(
    kind="hang", category="rank_blocked", what="rank 5 is stuck", ranks=(5,), confidence=0.9,
    evidence=(Evidence(file="f", line=1, rank=5),),
)  # fmt: skip


def test_a_report_survives_json():
    report = Report(
        verdict=Verdict(state="faulty", ranks=(5,)), findings=(FINDING,), layout={"tp": 2}
    )
    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert again == report
    assert isinstance(again.findings[0].ranks, tuple)


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "hang", "category": "c", "what": "w", "blame": [5]}',
        '{"kind": "hung", "category": "c", "what": "w"}',
        '{"kind": "hang", "category": "c"}',
        '{"kind": "hang", "category": "c", "what": "w", "confidence": 1.5}',
        '{"kind": "hang", "category": "c", "what": "w", "confidence": -0.1}',
        '{"kind": "hang", "category": "c", "what": "w", "ranks": ["5"]}',
    ],
)
def test_what_is_no_finding_is_refused(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Finding)


def test_reports_do_not_share_their_tables():
    a, b = Report(verdict=Verdict(state="healthy")), Report(verdict=Verdict(state="healthy"))
    a.read["events"] = 1
    assert b.read == {}


def test_a_finding_cannot_be_changed_by_a_later_detector():
    with pytest.raises(AttributeError):
        FINDING.ranks = (4,)
