import pytest
from synthetic import write_run

from engine.diagnose.attribution import attribute, critical_path, model_of
from engine.diagnose.record import read_record
from engine.diagnose.run import diagnose_spans
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
