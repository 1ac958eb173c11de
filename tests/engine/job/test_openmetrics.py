"""The page is what OpenMetrics says it has to be, and is served while the driver lives."""

import re
import urllib.error
import urllib.request

import pytest

from engine.errors import MissingError
from engine.job.openmetrics import MetricsPage, page
from engine.job.view import JobView, NodeView

VIEW = JobView(
    job='a"b\\c', state="running", attempt=0, driver_pid=1, time_s=1.0, step=7, total_steps=9,
    loss=2.5, restarts=3, step_s=0.5,
    nodes=(NodeView(node="n1", state="active", load=1.5), NodeView(node="n2", state="lost")),
)  # fmt: skip
LINE = re.compile(r'^[a-z_]+\{([a-z_]+="(\\.|[^"\\])*",?)+\} [-0-9.e]+$')


def test_every_line_is_well_formed_and_the_end_is_marked():
    lines = page(VIEW).splitlines()
    assert lines[-1] == "# EOF"
    for line in lines:
        assert line.startswith("# ") or LINE.match(line), line


def test_values_are_those_of_the_job():
    text = page(VIEW)
    assert r'msctl_step{job="a\"b\\c"} 7' in text
    assert r'msctl_restarts_total{job="a\"b\\c"} 3' in text
    assert 'msctl_state="running"} 1' in text
    assert 'msctl_state="done"} 0' in text
    assert 'node="n2",msctl_node_state="lost"} 1' in text
    assert "gpu_celsius" not in text, "no GPU, no number"


def test_it_is_served_and_nothing_else_is():
    served = MetricsPage(0, lambda: VIEW)
    try:
        base = f"http://127.0.0.1:{served.port}"
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().decode() == page(VIEW)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/etc/passwd", timeout=10)
        with pytest.raises(MissingError, match="metrics_port"):
            MetricsPage(served.port, lambda: VIEW)
    finally:
        served.close()
