import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from synthetic import append_open, write_run

from engine.diagnose.export import open_metrics, write_findings
from engine.diagnose.finding import Finding, Report, Verdict
from engine.diagnose.heatmap import SHADES, heat_map, text_rows
from engine.diagnose.html import write_html
from engine.diagnose.run import diagnose_spans
from engine.diagnose.timeline import write_timeline
from engine.errors import TraceError
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture
def slow(tmp_path):
    return write_run(tmp_path / "slow", LAYOUT, factor=lambda rank, step: 1.2 if rank == 5 else 1.0)


def test_the_slow_rank_is_the_dark_row(slow):
    _, spans = diagnose_spans(slow)
    heat = heat_map(spans)
    assert int(np.argmax(heat.cells.mean(axis=1))) == 5
    rows = text_rows(heat)
    assert sum(SHADES.index(c) for c in rows[5].split("|")[1]) > 5 * 19
    assert rows[5].startswith("pp 1 dp 0 rank 5")


def test_folding_keeps_a_single_slow_rank_visible(slow):
    _, spans = diagnose_spans(slow)
    heat = heat_map(spans, rows=2, columns=4)
    assert heat.cells.shape == (2, 4)
    assert heat.cells[1].min() > 0.15
    assert heat.cells[0].max() < 0.05


def test_the_timeline_shifts_clocks_and_draws_every_message(slow, tmp_path):
    out = tmp_path / "trace.json"
    made = write_timeline(slow, out, LAYOUT, steps=(3, 4))
    trace = json.loads(out.read_text())["traceEvents"]
    slices = [e for e in trace if e["ph"] == "X"]
    assert len(slices) == made.slices
    assert {e["pid"] for e in slices} == set(range(8))
    starts = [e for e in trace if e["ph"] == "s"]
    ends = [e for e in trace if e["ph"] == "f"]
    assert (
        len(starts) == len(ends) == made.arrows == 2 * 4 * 4 * 2
    )  # steps, pipelines, messages, ways
    optimizer = [e["ts"] for e in slices if e["name"] == "optimizer" and e["args"]["step"] == 3]
    assert max(optimizer) - min(optimizer) <= 2 * made.residual_ns / 1e3 + 1e-3
    assert made.unaligned == ()


def test_a_step_that_is_not_there_is_an_error(slow, tmp_path):
    with pytest.raises(TraceError):
        write_timeline(slow, tmp_path / "x.json", LAYOUT, steps=(900, 901))


def test_open_metrics_has_one_state_and_ends_well(slow):
    report, _ = diagnose_spans(slow)
    text = open_metrics(report)
    assert text.endswith("# EOF\n")
    states = re.findall(r'msctl_job_state="(\w+)"\} 1', text)
    assert states == ["degraded"]
    assert 'msctl_straggler_cost_ratio{job="slow",rank="5"}' in text


def test_findings_are_one_json_object_a_line(slow, tmp_path):
    report, _ = diagnose_spans(slow)
    assert write_findings(report, tmp_path / "f.jsonl") == len(report.findings)
    first = json.loads((tmp_path / "f.jsonl").read_text().splitlines()[0])
    assert (first["order"], first["category"], first["ranks"]) == (0, "perf_straggler", [5])


def test_no_log_line_can_break_out_of_the_page(tmp_path):
    evil = "</script><script>alert(1)</script><!--"
    finding = Finding(kind="crash", category="code_error", what=evil, confidence=0.5)
    report = Report(verdict=Verdict(state="faulty", what=evil), findings=(finding,))
    write_html(report, tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert evil not in page
    assert page.count("</script>") == 3
    assert "http://" not in page
    assert "https://" not in page


def browse(page, script, folder, *options):
    """The page's document after a script has run in a real browser."""
    copy = folder / "browse.html"
    copy.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", *options, f"file://{copy}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


CLICK = """
const box = document.getElementById("grid").getBoundingClientRect();
const [x, y] = centre(%d);
for (const type of ["mousemove", "click"]) document.getElementById("grid").dispatchEvent(
  new MouseEvent(type, {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
document.body.dataset.dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.body.dataset.ink = getComputedStyle(document.body).backgroundColor;
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_click_on_a_rank_shows_its_panel(tmp_path):
    run = write_run(tmp_path / "hang", LAYOUT, steps=6, ended=False)
    for rank in range(8):
        if rank == 5:
            append_open(run, rank, 6, "data", 10.0)
        else:
            on = {"on": "pp_b"} if rank < 2 else {"on": "dp_reduce"}
            append_open(run, rank, 6, "wait", 10.0, **(on if rank != 4 else {"on": "tp"}))
    report, spans = diagnose_spans(run)
    assert report.verdict.ranks == (5,)
    page = tmp_path / "p.html"
    write_html(report, page, spans)
    document = browse(page, CLICK % 4, tmp_path)
    panel = re.search(r'<div id="rank">(.*?)</section>', document, re.DOTALL)[1]
    assert "rank 4" in panel
    assert "tp 0, pp 1, dp 0" in panel
    assert re.search(r"waits for</dt><dd>5<", panel)
    assert 'id="history"' in panel
    assert re.search(r'id="tip"[^>]*>rank 4', document)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_follow_the_system(slow, tmp_path, dark):
    report, spans = diagnose_spans(slow)
    page = tmp_path / "p.html"
    write_html(report, page, spans)
    document = browse(
        page, CLICK % 5, tmp_path, f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    )
    background = re.search(r'data-ink="rgb\((\d+)', document)
    assert background is not None
    assert (int(background[1]) < 80) == dark
