import json

import pytest
from synthetic import append_open, write_run

from engine.diagnose.run import diagnose_run
from engine.errors import TraceError
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, vpp=2, dp=2)


def test_a_healthy_run_is_healthy(tmp_path):
    report = diagnose_run(write_run(tmp_path / "ok", LAYOUT))
    assert report.verdict.state == "healthy"
    assert report.verdict.ranks == ()
    assert report.world == 8


def test_the_parts_of_every_step_sum_to_the_step(tmp_path):
    times = diagnose_run(write_run(tmp_path / "ok", LAYOUT)).times
    assert sum(part.seconds for part in times.parts) == pytest.approx(times.step_s, rel=1e-3)
    for rank in times.per_rank:
        assert sum(rank.parts_s.values()) == pytest.approx(rank.step_s, rel=1e-3)


def test_a_slow_rank_is_named_with_its_excess(tmp_path):
    run = write_run(tmp_path / "slow", LAYOUT, factor=lambda rank, step: 1.1 if rank == 5 else 1.0)
    verdict = diagnose_run(run).verdict
    assert (verdict.state, verdict.category, verdict.ranks) == ("degraded", "perf_straggler", (5,))
    assert float(verdict.what.split("computes ")[1].split(" %")[0]) == pytest.approx(10, abs=0.4)


def test_bursts_and_drift_are_told_apart(tmp_path):
    burst = write_run(
        tmp_path / "burst",
        LAYOUT,
        steps=40,
        factor=lambda rank, step: 1.25 if rank == 2 and step // 5 % 4 == 1 else 1.0,
    )
    drift = write_run(
        tmp_path / "drift",
        LAYOUT,
        steps=40,
        factor=lambda rank, step: 1 + 0.004 * step if rank == 3 else 1.0,
    )
    first, second = diagnose_run(burst).verdict, diagnose_run(drift).verdict
    assert first.ranks == (2,)
    assert "in bursts" in first.what
    assert second.ranks == (3,)
    assert "more and more" in second.what


def test_collections_at_different_steps_are_perf_gc(tmp_path):
    run = write_run(
        tmp_path / "gc",
        LAYOUT,
        steps=40,
        extra=lambda rank, step: [("gc", 0.15)] if (rank * 7 + step) % 23 == 0 else [],
    )
    assert diagnose_run(run).verdict.category == "perf_gc"


def test_slow_data_is_perf_data(tmp_path):
    run = write_run(tmp_path / "data", LAYOUT, extra=lambda rank, step: [("data", 0.08)])
    assert diagnose_run(run).verdict.category == "perf_data"


def test_open_spans_lead_to_the_rank_that_waits_for_nobody(tmp_path):
    run = write_run(tmp_path / "hang", LAYOUT, steps=6, ended=False)
    at = {
        0: ("wait", {"on": "pp_b"}),
        1: ("wait", {"on": "pp_b"}),
        2: ("wait", {"on": "dp_reduce"}),
        3: ("wait", {"on": "dp_reduce"}),
        4: ("tp_comm", {"op": "all_reduce", "bytes": 1}),
        5: ("data", {}),
        6: ("wait", {"on": "dp_reduce"}),
        7: ("wait", {"on": "dp_reduce"}),
    }
    for rank, (name, attrs) in at.items():
        append_open(run, rank, 6, name, 10.0, **attrs)
    verdict = diagnose_run(run).verdict
    assert (verdict.kind, verdict.category, verdict.ranks) == ("hang", "rank_blocked", (5,))
    assert "7 of 8 ranks wait" in verdict.why


def test_a_killed_rank_is_the_one_whose_file_has_no_end(tmp_path):
    run = write_run(tmp_path / "kill", LAYOUT, steps=6)
    (run / "result.json").write_text(json.dumps({"ended": "failed"}))
    path = run / "events" / "rank-00005.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:-20]) + b'\n{"torn')
    verdict = diagnose_run(run).verdict
    assert (verdict.kind, verdict.ranks) == ("crash", (5,))


def test_a_bad_file_is_named_and_the_rest_is_read(tmp_path):
    run = write_run(tmp_path / "ok", LAYOUT)
    (run / "events" / "rank-00003.jsonl").write_bytes(b"\x00\xff garbage\n" * 5)
    report = diagnose_run(run)
    assert [e.file.endswith("rank-00003.jsonl") for e in report.unreadable] == [True]
    assert len(report.times.per_rank) == 7


def test_a_folder_without_events_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(TraceError) as caught:
        diagnose_run(tmp_path)
    assert caught.value.remedy


def test_an_incident_is_what_the_driver_saw_and_its_run_says_that_it_came_back(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT, steps=6)
    folder = write_run(run / "incidents" / "001", LAYOUT, steps=6, ended=False)
    seen = {"kind": "crash", "what": "rank 3 was ended by SIGKILL", "ranks": [3], "step": 6,
            "remedy": "see dmesg", "confidence": 0.9}  # fmt: skip
    (folder / "recovery.json").write_text(json.dumps({"incident": seen, "steps_lost": 3}))
    verdict = diagnose_run(folder).verdict
    assert (verdict.kind, verdict.category, verdict.ranks) == ("crash", "crash", (3,))
    assert verdict.next == "see dmesg"
    verdict = diagnose_run(run).verdict
    assert verdict.state == "healthy"
    assert "came back from 1 incident, the last: rank 3 was ended by SIGKILL" in verdict.what
    (folder / "recovery.json").write_bytes(b'{"incident": [')
    verdict = diagnose_run(folder).verdict
    assert verdict.state == "unknown"
    assert "no rank recorded an end, and the last event is" in verdict.what


def test_a_file_that_is_missing_beside_ranks_that_ended_is_no_crash(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT, steps=6)
    (run / "events" / "rank-00003.jsonl").unlink()
    report = diagnose_run(run)
    assert report.verdict.state == "healthy"
    assert any("events of 1 ranks" in gap for gap in report.not_looked_at)


def test_a_run_that_never_began_again_is_its_newest_incident(tmp_path):
    folder = write_run(tmp_path / "run" / "incidents" / "001", LAYOUT, steps=6, ended=False)
    (folder / "recovery.json").write_text(
        json.dumps({"incident": {"kind": "crash", "what": "rank 3 died", "ranks": [3], "step": 6}})
    )
    verdict = diagnose_run(tmp_path / "run").verdict
    assert (verdict.kind, verdict.ranks) == ("crash", (3,))
