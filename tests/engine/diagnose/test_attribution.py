import pytest
from synthetic import write_run

from engine.diagnose.attribution import (
    _rows,
    attribute,
    critical_path,
    duration_of,
    model_of,
)
from engine.diagnose.record import read_record
from engine.diagnose.run import diagnose_spans
from engine.diagnose.times import steady
from engine.schedule.action import Action, Kind
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=4, dp=2)


def attributed(folder):
    report, spans = diagnose_spans(folder)
    record = read_record(folder)
    return attribute(spans, record, report.findings), model_of(spans, record)


def test_rows_sum_to_the_step_and_little_is_unexplained(tmp_path):
    found, _ = attributed(write_run(tmp_path, LAYOUT, microbatches=8))
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.measured_s, rel=1e-3)
    rest = next(row for row in found.rows if row.name == "unexplained")
    assert abs(rest.points) < 0.03


def test_the_bubble_is_that_of_the_formula(tmp_path):
    """Equal stages: idle over busy is (p - 1) / m for 1F1B (paper 2)."""
    run = write_run(tmp_path, LAYOUT, microbatches=8, noise=0.0, even=True)
    found, model = attributed(run)
    assert model.base.bubble() == pytest.approx(3 / 8, rel=1e-6)
    seconds = {row.name: row.seconds for row in found.rows}
    assert seconds["bubble"] / seconds["compute"] == pytest.approx(3 / 8, rel=0.02)


def test_without_the_slow_rank_the_step_is_what_a_healthy_run_takes(tmp_path):
    slow = write_run(tmp_path / "a", LAYOUT, factor=lambda rank, step: 1.3 if rank == 9 else 1.0)
    healthy = write_run(tmp_path / "b", LAYOUT)
    found, _ = attributed(slow)
    other, _ = attributed(healthy)
    without = next(w for w in found.what_if if "rank 9" in w.without)
    assert without.step_s == pytest.approx(other.measured_s, rel=0.01)


def test_points_of_mfu_lead_from_peak_to_measured(tmp_path):
    run = write_run(tmp_path, LAYOUT)
    rows = [f'{{"step":{n},"loss":1.0,"grad_norm":1.0,"step_s":0.3,"mfu":0.4}}' for n in range(20)]
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    found, _ = attributed(run)
    assert found.mfu == pytest.approx(0.4, rel=1e-3)
    assert 1 - sum(row.points for row in found.rows) == pytest.approx(found.mfu, abs=1e-3)


def test_the_critical_path_covers_the_ideal_step(tmp_path):
    _, model = attributed(write_run(tmp_path, LAYOUT))
    legs = critical_path(model)
    total = sum(float(leg.split(", ")[1].split(" s")[0]) for leg in legs)
    assert total == pytest.approx(model.base.makespan_s, rel=1e-2)
    assert legs[0].startswith("stage 0")


def test_what_could_be_gained_is_told_largest_first_and_only_where_it_was_lost(tmp_path):
    slow = write_run(tmp_path / "a", LAYOUT, factor=lambda rank, step: 1.5 if rank == 9 else 1.0)
    found, _ = attributed(slow)
    gains = [w.gain for w in found.what_if]
    assert gains == sorted(gains, reverse=True)
    assert len(gains) > 1
    lost = {row.name: row.seconds for row in found.rows}
    told = {w.without: w.gain * found.measured_s for w in found.what_if}
    assert told["the pipeline bubble"] == pytest.approx(lost["bubble"])
    for name, text in {
        "data": "waiting for data",
        "garbage collection": "garbage collection",
    }.items():
        assert (text in told) == (lost.get(name, 0.0) > 0.005 * found.measured_s)
    for one in found.what_if:
        assert one.step_s == pytest.approx(found.measured_s * (1 - one.gain))


def test_each_part_is_a_row_and_stragglers_are_taken_from_the_waits_for_them(tmp_path):
    run = write_run(tmp_path, LAYOUT, microbatches=8)
    _, spans = diagnose_spans(run)
    model = model_of(spans, read_record(run))
    parts = {"data": 0.01, "clip": 0.02, "optimizer": 0.03, "tied": 0.04, "eval": 0.05,
             "checkpoint": 0.06, "gc": 0.07, "wait_other": 0.08, "other": 0.09,
             "wait_pp": 2.0, "wait_dp": 0.5, "wait_tp": 1.5}  # fmt: skip
    for part, seconds in parts.items():
        spans.seconds[part][:] = seconds
    rows = dict(_rows(spans, steady(spans), model, 0.3))
    assert list(rows) == [
        "compute", "bubble", "stragglers", "tensor parallel", "exposed pp", "exposed dp", "data",
        "gradient norm", "optimizer", "tied", "validation", "checkpoint", "garbage collection",
        "other waits", "unexplained",
    ]  # fmt: skip
    told = [
        rows[n]
        for n in (
            "data",
            "gradient norm",
            "optimizer",
            "tied",
            "validation",
            "checkpoint",
            "garbage collection",
            "other waits",
            "unexplained",
        )
    ]
    assert told == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09])
    assert rows["stragglers"] == pytest.approx(0.3)
    waits = [
        rows[n] for n in ("bubble", "stragglers", "tensor parallel", "exposed pp", "exposed dp")
    ]
    assert sum(waits) == pytest.approx(4.0), "what is given to stragglers is taken from the others"
    assert rows["tensor parallel"] == pytest.approx(1.5 * (1 - 0.3 / (4.0 - rows["bubble"])))


def test_transfers_take_no_time_in_the_ideal_step():
    duration = duration_of({("forward", 0): 2.0})
    assert duration(Action(Kind.FORWARD, 0, 0)) == 2.0
    assert duration(Action(Kind.SEND_F, 0, 0)) == 0.0
    assert duration(Action(Kind.BACKWARD, 3, 0)) == 0.0, "an action that was not measured"
