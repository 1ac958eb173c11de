import json

import pytest

from engine.errors import LayoutError
from engine.plan.output import schedule_text, write_plot, write_trace
from engine.plan.search import Space, search
from engine.plan.setup import PlanLayout
from tests.engine.plan.case import job

JOB, LAYOUT = job("13b", gpus=32, batch=8), PlanLayout(tp=8, pp=4)


def test_the_trace_is_one_that_trace_viewers_open(tmp_path):
    written = write_trace(tmp_path / "t.json", JOB, LAYOUT)
    document = json.loads((tmp_path / "t.json").read_text())
    assert "Chrome trace" in written.what
    names = {row["name"] for row in document["traceEvents"]}
    assert {"forward", "backward", "send_f", "step"} <= names


def test_pictures_are_svg_or_png(tmp_path):
    write_plot(tmp_path / "p.svg", JOB, LAYOUT)
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    write_plot(tmp_path / "p.png", JOB, LAYOUT)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(LayoutError, match="SVG or PNG"):
        write_plot(tmp_path / "p.pdf", JOB, LAYOUT)


def test_the_grid_has_a_row_a_stage():
    best = search(JOB, 32, Space(tp=(8,), pp=(4,), vpp=(1,)), top=1).candidates[0]
    assert schedule_text(best).count("stage ") == 4
