"""Slowness of foreign jobs, from hand-made segments and kernels."""

import numpy as np
import pytest

from engine.diagnose.foreignpace import segment_findings, trace_findings
from engine.diagnose.parts import PARTS
from engine.diagnose.readers.job import NOTHING, Job
from engine.diagnose.readers.kineto import Trace
from engine.diagnose.readers.segments import Segments

JOB = Job("j", 8, (("tp", 2), ("dp", 2), ("pp", 2)), {})


def segments(ranks=8, steps=12, **parts):
    seconds = {part: np.zeros((ranks, steps), np.float32) for part in PARTS}
    for part, value in parts.items():
        seconds[part][:] = value
    return Segments(
        np.arange(ranks, dtype=np.int32), np.arange(100, 100 + steps, dtype=np.int64), seconds
    )


def noisy(ranks=8, steps=12):
    return 1 + 0.004 * np.random.default_rng(2).standard_normal((ranks, steps))


def test_nothing_and_too_few_steps_tell_nothing():
    assert segment_findings(None, JOB) == []
    assert segment_findings(segments(steps=3, forward=0.5, data=0.5), JOB) == []
    assert len(segment_findings(segments(steps=4, forward=0.5, data=0.5), JOB)) == 1
    assert segment_findings(segments(), JOB) == []


def test_a_slow_rank_is_named_with_its_share_of_the_step():
    forward = 0.5 * noisy()
    forward[6] *= 1.2
    (finding,) = segment_findings(segments(forward=forward, wait_dp=0.5), JOB)
    assert (finding.category, finding.ranks, finding.step) == ("perf_straggler", (6,), 101)
    assert finding.cost == pytest.approx(0.1, abs=0.01)
    assert segment_findings(segments(forward=forward, wait_dp=10.0), JOB) == []


def test_a_heavier_stage_is_nobodys_fault_where_the_job_is_known():
    forward = 0.5 * noisy()
    forward[4:] *= 1.5
    assert segment_findings(segments(forward=forward), JOB) == []
    forward[7] *= 1.2
    assert [f.ranks for f in segment_findings(segments(forward=forward), JOB)] == [(7,)]


def test_the_first_step_is_warm_up():
    forward = 0.5 * noisy()
    forward[3, 0] = 50.0
    late = np.zeros((8, 12), np.float32)
    late[:, 0] = 60.0
    assert segment_findings(segments(forward=forward, data=late, gc=late), NOTHING) == []
    forward[:, 0] = 50.0
    forward[6] *= 1.2
    assert segment_findings(segments(forward=forward, wait_dp=10.0), NOTHING) == []


def test_pauses_cost_what_the_worst_rank_spends():
    gc = np.zeros((8, 13), np.float32)
    gc[3, ::2] = 0.2
    (finding,) = segment_findings(segments(steps=13, forward=1.0, gc=gc), JOB)
    assert (finding.category, finding.cost) == ("perf_gc", pytest.approx(0.1))
    assert "holds 50.0 % of the steps" in finding.what
    assert "100.0 ms" in finding.evidence[0].text
    assert segment_findings(segments(forward=1.0, gc=0.009), JOB) == []


def test_waiting_for_data_counts_from_a_fifth_of_the_step():
    (finding,) = segment_findings(segments(forward=0.75, data=0.25), JOB)
    assert (finding.category, finding.cost) == ("perf_data", pytest.approx(0.25))
    assert segment_findings(segments(forward=0.85, data=0.15), JOB) == []


def trace(rank, slow=1.0, kernels=30, signature=1):
    noise = 0.005 * np.random.default_rng(rank).standard_normal(kernels)
    durations = (100 * slow * (1 + noise)).astype(np.float32)
    return Trace(rank, f"t{rank}", durations, 0.0, 3000.0, 1, signature)


def test_kernels_are_compared_between_ranks_that_launch_the_same():
    traces = [trace(r, 1.2 if r == 5 else 1.0) for r in (5, 0, 2, 1, 4, 3)]
    (finding,) = trace_findings(traces, NOTHING)
    assert (finding.kind, finding.ranks) == ("straggler", (5,))
    assert finding.cost == pytest.approx(0.2, abs=0.02)
    assert trace_findings([trace(r) for r in range(6)], NOTHING) == []


def test_one_trace_or_too_few_kernels_tell_nothing():
    assert trace_findings([trace(0, 5.0)], NOTHING) == []
    assert trace_findings([trace(r, 1 + r, kernels=7) for r in range(4)], NOTHING) == []


def test_other_kernels_are_another_kind_of_rank():
    """Two stages: the second one's kernels are longer, and nobody is slow."""
    traces = [trace(r, 1 + r // 6, signature=r // 6) for r in range(8)]
    assert trace_findings(traces, NOTHING) == []
    traces = [trace(r, 1 + r // 6) for r in range(8)]
    assert sorted(f.ranks for f in trace_findings(traces, NOTHING)) == [(6,), (7,)]
