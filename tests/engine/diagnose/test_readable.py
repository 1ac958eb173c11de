"""Names that are no UTF-8 in every form that a report has."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.diagnose.export import open_metrics, write_findings
from engine.diagnose.finding import Evidence, Finding, Report, Verdict
from engine.diagnose.html import write_html
from engine.diagnose.readable import readable

NAME = b"caf\xe9_\xc3\xa9".decode("utf-8", "surrogateescape")
SHOWN = "caf\\xe9_é"


def report(name):
    evidence = Evidence(file=name, line=3, text="é")
    finding = Finding(kind="crash", category="c", what=name, nodes=(name,), evidence=(evidence,))
    return Report(verdict=Verdict(state="faulty", file=name), job=name, layout={"tp": 2},
                  read={name: 1}, findings=(finding,), unreadable=(evidence,))  # fmt: skip


def test_bytes_that_are_no_utf8_are_shown_by_their_number_everywhere():
    assert readable(report(NAME)) == report(SHOWN)


def test_a_report_without_such_names_is_itself():
    one = report("café\n\x1b")
    assert readable(one) is one


def test_every_form_of_the_report_can_be_written(tmp_path):
    one = readable(report(NAME))
    write_html(one, tmp_path / "r.html")
    write_findings(one, tmp_path / "f.jsonl")
    open_metrics(one).encode()
    found = msgspec.json.decode((tmp_path / "f.jsonl").read_bytes())
    assert (found["id"], found["evidence"][0]["file"]) == (f"{SHOWN}-0", SHOWN)


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_any_text_has_a_form(text):
    assert msgspec.json.encode(readable(report(text)))
