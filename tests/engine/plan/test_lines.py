import numpy as np
import pytest

from engine.plan.lines import LinePoint, regress, score_lines
from engine.plan.setup import PlanLayout
from tests.engine.plan.case import job


def points(slope, intercept, *, ours=(0.2, 1.0), batches=(768, 384, 256, 192)):
    """Runs of one system on a line of its own; the plan has another one."""
    layout = PlanLayout(tp=8, pp=8, vpp=6, dp=4)
    found = []
    for batch in batches:
        m = batch / layout.dp
        found.append(LinePoint("paper", job("175b", gpus=256, batch=batch), layout,
                               slope * m + intercept, ours[0] * m + ours[1]))  # fmt: skip
    return found


def test_a_line_is_found_again():
    m = np.array([32.0, 48.0, 64.0, 192.0])
    assert regress(m, 0.1958 * m + 2.43) == pytest.approx((0.1958, 2.43))


def test_slope_and_intercept_are_scored_apart():
    (line,) = score_lines(points(0.196, 2.4, ours=(0.212, 0.73)))
    assert (line.slope_s, line.intercept_s) == pytest.approx((0.196, 2.4))
    assert (line.predicted_slope_s, line.predicted_intercept_s) == pytest.approx((0.212, 0.73))
    assert (line.runs, line.system) == (4, "megascale")
    assert "tp 8 pp 8 vpp 6" in line.shape


@pytest.mark.parametrize("batches", [(768, 384), (768, 768, 768), (768, 760, 752)])
def test_few_or_equal_numbers_make_no_line(batches):
    assert score_lines(points(0.2, 1.0, batches=batches)) == ()


def test_runs_of_other_layouts_are_on_other_lines():
    one = points(0.2, 1.0)
    other = [p._replace(layout=PlanLayout(tp=4, pp=16, vpp=6, dp=4)) for p in points(0.3, 2.0)]
    lines = score_lines([*one, *other])
    assert sorted(round(line.slope_s, 3) for line in lines) == [0.2, 0.3]
