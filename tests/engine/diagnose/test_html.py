"""The page holds the report as JSON that no text of a log can leave."""

import re

import msgspec
import pytest

from engine.diagnose.finding import Finding, Report, Verdict
from engine.diagnose.html import write_html


def embedded(path):
    """The JSON of each data element, as a browser finds it."""
    page = path.read_text(encoding="utf-8")
    blocks = re.findall(
        r'<script type="application/json" id="(\w+)">(.*?)</script>', page, re.DOTALL
    )
    return {name: msgspec.json.decode(text) for name, text in blocks}


@pytest.mark.parametrize(
    "text",
    [
        "plain", "</script><script>alert(1)</script>", "<!--", "]]>", "&quot;", '"', "\\",
        "{{picture}}", "{{report}}", "line  separator", "é – 漢", "\x00\x1b[31m",
    ],
)  # fmt: skip
def test_whatever_a_log_says_comes_back_as_text(tmp_path, text):
    finding = Finding(kind="crash", category="code_error", what=text)
    report = Report(verdict=Verdict(state="faulty", what=text), job=text, findings=(finding,))
    path = tmp_path / "p.html"
    size = write_html(report, path)
    assert size == path.stat().st_size
    found = embedded(path)
    assert msgspec.convert(found["report"], Report) == report
    assert found["picture"]["world"] == 1


def test_the_page_needs_nothing_from_outside_and_no_place_is_left_empty(tmp_path):
    path = tmp_path / "p.html"
    write_html(Report(verdict=Verdict(state="healthy")), path)
    page = path.read_text()
    assert "{{" not in page
    assert not re.search(r'(?:src|href)\s*=\s*["\']?(?:https?:)?//', page)
    assert "@import" not in page
