"""The arrays of the page: bytes by rank number, folded, with the ranks that are blamed."""

import base64

import msgspec
import numpy as np
import pytest
from arrays import make_spans

from engine.diagnose.finding import Finding, Report, Verdict
from engine.diagnose.picture import _fold, picture_of
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, dp=4)


def report(*findings, world=8):
    return Report(
        verdict=Verdict(state="degraded"), world=world, layout={"tp": 2, "dp": 4}, findings=findings
    )


def blame(*ranks):
    return Finding(kind="crash", category="crash", what="w", ranks=ranks)


def test_without_spans_the_layout_and_the_blamed_are_drawn():
    values = picture_of(report(blame(5, 3), blame(3, 1)), None).values
    assert values["degrees"] == {"tp": 2, "pp": 1, "dp": 4}
    assert (values["world"], values["bad"]) == (8, [1, 3, 5])
    assert "history" not in values
    assert picture_of(report(world=0), None).values["world"] == 1


def test_only_the_first_eight_findings_are_blamed():
    values = picture_of(report(*(blame(r) for r in range(10))), None).values
    assert values["bad"] == list(range(8))


def test_excess_and_history_stand_at_the_number_of_their_rank():
    forward = np.ones((8, 5), np.float32)
    forward[6] = 1.25
    forward[2, 3:] = 3.0
    spans = make_spans(LAYOUT, 5, forward=forward, wait_dp=0.5)
    kept = [0, 1, 2, 3, 4, 6, 7]  # the file of rank 5 is gone
    spans = spans._replace(
        ranks=spans.ranks[kept], step_s=spans.step_s[kept],
        seconds={part: values[kept] for part, values in spans.seconds.items()},
    )  # fmt: skip
    values = picture_of(report(), spans).values
    assert values["columns"] == 4
    assert (values["first"], values["last"]) == (1, 4)
    history = np.frombuffer(base64.b64decode(values["history"]), np.uint8).reshape(8, 4)
    assert history[6].tolist() == [125] * 4
    assert history[2].tolist() == [0, 0, 255, 255]  # saturates above a half
    assert not history[[0, 1, 3, 4, 5, 7]].any()
    assert values["excess"] == pytest.approx([0, 0, 1.0, 0, 0, 0, 0.25, 0])
    assert set(values["parts"]) == {"forward", "wait_dp"}
    assert values["parts"]["wait_dp"] == [0.5] * 5 + [0, 0.5, 0.5]
    assert len(values["heat"]["cells"]) == 7
    assert len(msgspec.json.encode(values)) > 0


def test_a_rank_that_is_quicker_than_its_peers_has_an_empty_history():
    forward = np.ones((8, 5), np.float32)
    forward[6] = 0.5
    values = picture_of(report(), make_spans(LAYOUT, 5, forward=forward)).values
    assert not any(base64.b64decode(values["history"]))
    assert values["excess"][6] == -0.5


def test_a_run_without_a_complete_step_has_no_history():
    spans = make_spans(LAYOUT, 3, forward=1.0)
    spans.step_s[:] = np.nan
    assert "history" not in picture_of(report(), spans).values


def test_folding_means_consecutive_steps():
    row = np.array([[1, 3, 5, 7, 9, 11]], np.float32)
    assert _fold(row, 3).tolist() == [[2, 6, 10]]
    assert _fold(row, 6) is row
    assert _fold(row, 4).shape == (1, 4)
    assert _fold(row, 4).tolist() == [[1, 4, 7, 10]]
    wide = np.random.default_rng(0).random((3, 977)).astype(np.float32)
    assert _fold(wide, 40).shape == (3, 40)
