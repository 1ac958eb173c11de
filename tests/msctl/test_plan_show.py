"""What `msctl plan` prints of each answer."""

import msgspec

from engine.job.simulate import Months
from engine.plan.adapt import Adapted, Constant
from engine.plan.emitted import Emitted
from engine.plan.exhaust import Exhausted
from engine.plan.goodput import Goodput
from engine.plan.lines import LineScore
from engine.plan.paper import Ladder, Rung
from engine.plan.report import (
    Budget,
    Candidate,
    Exposed,
    MemoryParts,
    PlanReport,
    Refusal,
    Sensitivity,
    Share,
)
from engine.plan.setup import PlanLayout
from engine.plan.validate import GroupScore, MemoryScore, Skipped, Summary, Validation
from engine.spec.cluster import ClusterSpec, DeviceSpec, LinkSpec
from engine.spec.model import ModelSpec
from msctl.commands import plan_show
from tests.msctl.shown import shown

LINK = LinkSpec(bytes_per_s=1e9)
DEVICE = DeviceSpec(name="X100", peak_flops_per_s={"bf16": 1e15}, memory_bytes=1 << 36,
                    memory_bytes_per_s=1e12)  # fmt: skip
CLUSTER = ClusterSpec(device=DEVICE, intra=LINK, inter=LINK)
MEMORY = MemoryParts(stage=0, weights=1, gradients=1, optimizer=1, activations=1, logits=1,
                     reserve=1)  # fmt: skip
LAYOUT = PlanLayout(tp=8, pp=4, vpp=2, dp=16, micro_batch=3, recompute="none", schedule="auto")


def candidate(step_s):
    return Candidate(
        layout=LAYOUT, microbatches=6, step_s=step_s, step_p10_s=6.1, step_p90_s=6.789, mfu=0.552,
        mfu_window=0.5, hfu=0.6, tokens_per_s=1.0, bubble=0.031, memory_bytes=2.0**35,
        memory=MEMORY, exposed=Exposed(tp=0.1, pp=0.02, dp=0.003), bound_s=1.0,
    )  # fmt: skip


def report(**changes):
    given = {
        "model": ModelSpec(layers=2, hidden=8, heads=2, vocab=9, seq=2048), "params": 175e9,
        "cluster": CLUSTER, "gpus": 512, "global_batch": 768, "precision": "bf16",
        "system": "megascale", "considered": 40, "simulated": 5,
    }  # fmt: skip
    return PlanReport(**given | changes)


ROW = ["8", "4", "2", "16", "3", "auto", "none"]


def test_candidates_are_ranked_with_what_they_assume(capsys):
    found = shown(
        capsys, plan_show.show_report,
        report(candidates=(candidate(6.34), candidate(7.0)), assumptions=("a", "b"),
               refusals=(Refusal(rule="memory", count=7, message="m"),
                         Refusal(rule="heads", count=2, message="h"))),
    )  # fmt: skip
    header, first, second = found.rows
    assert len(header) == len(first)
    assert first == ["1", *ROW, "6.34 s", "6.10-6.79 s", "55.2 %", "3.1 %", "100 ms", "20 ms",
                     "3 ms", "32.00 GiB"]  # fmt: skip
    assert second[:9] == ["2", *ROW, "7 s"]
    assert "assumed: a\nassumed: b\n" in found.err
    assert found.err.endswith("40 layouts bounded, 5 simulated; refused: 7 memory; 2 heads\n")
    assert report().convention in found.err


def test_a_long_step_and_its_interval_have_one_unit(capsys):
    slow = msgspec.structs.replace(candidate(19267200.0), step_p10_s=16382461.71,
                                   step_p90_s=22650905.62)  # fmt: skip
    found = shown(capsys, plan_show.show_report, report(candidates=(slow,)))
    assert found.rows[1][8:10] == ["223.0 days", "189.61-262.16 days"]


def test_no_layout_says_why(capsys):
    found = shown(
        capsys, plan_show.show_report,
        report(refusals=(Refusal(rule="memory", count=7, message="too large"),)),
    )  # fmt: skip
    assert found.rows == [["rule", "layouts", "says"], ["memory", "7", "too large"]]
    assert "refused: none" in shown(capsys, plan_show.show_report, report()).err


def test_the_best_one_is_taken_apart(capsys):
    found = shown(
        capsys, plan_show.show_report,
        report(
            candidates=(candidate(6.34),),
            waterfall=(Share(cause="bubble", seconds=0.5, points=0.04),),
            sensitivity=(Sensitivity(change="tp = 4", step_s=7.0, points=-0.051),),
            budget=Budget(tokens=300e9, days=1.75, gpu_hours=21568, price_per_gpu_hour=2.5,
                          cost=53920),
        ),
    )  # fmt: skip
    assert found.table("from the peak to the MFU of rank 1") == [["bubble", "500 ms", "4.0"]]
    assert found.table("one change at a time, rank 1")[0] == ["tp = 4", "7 s", "-5.1"]
    assert found.out.endswith(
        "300 G tokens: 1.75 days, 21.57 k GPU-hours, 53.92 k at 2.5 per GPU-hour\n"
    )


def test_the_title_says_what_was_planned():
    assert plan_show._title(report()) == (
        "175 G parameters on 512 x X100, batch 768 x 2048 tokens, bf16, system megascale"
    )


def test_the_papers_table(capsys):
    rung = Rung(step="overlap", published=0.533, predicted=0.54, published_gain=0.062,
                predicted_gain=-0.01, step_s=1.0)  # fmt: skip
    ladder = Ladder(rungs=(rung,), worst_gain_error=0.1, worst_total_error=0.1)
    found = shown(capsys, plan_show.show_ladder, ladder)
    assert found.rows[1] == ["overlap", "53.3 %", "54.0 %", "+6.2", "-1.0"]
    assert ladder.convention in found.err


def group(name):
    return GroupScore(name=name, rows=4, mape=0.071, bias=-0.02, worst=0.155, worst_id="run7")


LINE = LineScore(group="g", system="s", runs=3, shape="tp=8", slope_s=0.12345,
                 predicted_slope_s=0.2, intercept_s=1.0, predicted_intercept_s=1.5)  # fmt: skip


def validation(**changes):
    given = {
        "summary": Summary(mape=0.071, row_mape=0.065, rows=9, skipped=0, coverage=0.8),
        "groups": (group("paper"),), "hardware": (group("A100"),), "rows": (), "lines": (),
        "memory": MemoryScore(), "skipped": (),
    }  # fmt: skip
    return Validation(**given | changes)


def test_scores_by_source_and_hardware(capsys):
    found = shown(capsys, plan_show.show_validation, validation())
    assert found.rows[1] == ["paper", "4", "7.1 %", "-2.0 %", "+15.5 %", "run7"]
    assert found.rows[found.rows.index(["# by hardware"]) + 2][0] == "A100"
    assert found.out.endswith(
        "9 rows: mean over groups 7.1 %, over rows 6.5 %; 80.0 % between P10 and P90\n"
    )
    assert "peak memory" not in found.out
    assert "not predicted" not in found.err


def test_lines_memory_and_what_was_not_predicted(capsys):
    skipped = [Skipped(id=f"r{i}", reason="no peak") for i in range(5)]
    skipped.append(Skipped(id="x", reason="fp4"))
    found = shown(
        capsys, plan_show.show_validation,
        validation(
            summary=Summary(mape=0, row_mape=0, rows=9, skipped=6, coverage=1),
            lines=(LINE,), skipped=tuple(skipped),
            memory=MemoryScore(rows=4, mape=0.11, trials=10, right=0.9, false_fits=0.1),
        ),
    )  # fmt: skip
    title = "seconds per micro-batch and per step, where runs make a line"
    assert found.table(title)[0] == ["g", "s", "3", "0.1235 s", "0.2000 s", "1.000 s", "1.500 s",
                                     "tp=8"]  # fmt: skip
    assert "peak memory, 4 rows: mean error 11.0 %\n" in found.out
    assert "10 trials: 90.0 % right, 10.0 % said to fit that did not\n" in found.out
    assert "6 rows not predicted:\nx: fp4\nr0, r1, r2 and 2 more: no peak\n" in found.err


def test_fitted_constants(capsys):
    fitted = Adapted(
        rows=12, constants=(Constant(name="gemm", before=0.75, after=0.81234),), error_before=0.3,
        error_after=0.05, error_left_out=0.08, log_error=0.1, cluster=CLUSTER, path="c.toml",
    )  # fmt: skip
    found = shown(capsys, plan_show.show_calibration, fitted)
    assert found.rows[1] == ["gemm", "0.75", "0.8123"]
    assert found.out.endswith(
        "12 runs: mean error 30.0 % before, 5.0 % after, 8.0 % for runs left out in turn\n"
    )
    assert "wrote c.toml" in found.err


def test_the_best_of_all_combinations(capsys):
    best = Exhausted(enumerated=12_345, feasible=999, simulated=30, candidates=(candidate(6.0),))
    found = shown(capsys, plan_show.show_exhausted, best)
    assert found.rows[1][:9] == ["1", *ROW, "6 s"]
    assert "12.35 k combinations, 999 feasible, 30 simulated" in found.err


def test_goodput(capsys):
    goodput = Goodput(
        nodes=1536, job_mtbf_s=7200.0, ckpt_every_s=300.0, best_ckpt_every_s=120.0, effective=0.9,
        lost_to_ckpt=0.01, lost_to_rework=0.02, lost_to_recovery=0.07, failures_per_day=12.0,
        spares=16,
    )  # fmt: skip
    rows = shown(capsys, plan_show.show_goodput, goodput).rows
    assert [row[1] for row in rows[1:]] == [
        "2 h 00 min", "12.00", "2 min 00 s", "90.0 %", "1.0 %", "2.0 %", "7.0 %", "16"
    ]  # fmt: skip


def months(**changes):
    given = {
        "days": 90.0, "effective": 0.5, "lost_to_ckpt": 0.01, "lost_to_rework": 0.02,
        "lost_to_detection": 0.03, "lost_to_checks": 0.04, "lost_to_restarts": 0.05,
        "lost_to_waiting": 0.06, "lost_to_fewer_replicas": 0.29, "faults": 99, "restarts": 5,
        "evictions": 4, "wrong_evictions": 1, "gpu_hours_lost": 1000, "money_lost": 2000,
    }  # fmt: skip
    return Months(**given | changes)


def test_the_shares_of_simulated_days_add_up_to_the_whole(capsys):
    found = shown(capsys, plan_show.show_months, months())
    shares = [float(value[:-2]) for _, value in found.rows if value.endswith(" %")]
    assert sum(shares) == 100
    assert ["nodes evicted", "4, 1 of them without fault"] in found.rows
    assert ["GPU-hours lost", "1 k"] in found.rows
    assert ["money lost", "2 k"] in found.rows
    assert found.err == ""


def test_a_job_that_ended_early_says_why(capsys):
    found = shown(capsys, plan_show.show_months, months(ended="no nodes are left"))
    assert "ended early: no nodes are left" in found.err


def test_a_text_for_another_program_is_left_as_it_is(capsys):
    emitted = Emitted(text="a\n  b\n\n", layout=LAYOUT, step_s=1.0, assumptions=("x",),
                      passed_over="y would be faster")  # fmt: skip
    found = shown(capsys, plan_show.show_emitted, emitted)
    assert found.out == "a\n  b\n"
    assert found.err == "assumed: x\nwarning: y would be faster\n"


def test_what_sets_rows_apart_gets_a_column_and_what_cannot_run_a_mark(capsys):
    def one(obstacle="", switches=None, **axes):
        layout = msgspec.structs.replace(LAYOUT, **axes)
        return msgspec.structs.replace(
            candidate(6.0), layout=layout, obstacle=obstacle, switches=switches or {}
        )

    def more(*candidates):
        found = shown(capsys, plan_show.show_report, report(candidates=candidates))
        return [row[16:] for row in found.rows], found.err

    assert more(one(), one())[0] == [[], [], []]
    assert more(one(zero=1), one(zero=2))[0] == [["zero"], ["1"], ["2"]]
    rows, talk = more(one("ZeRO-3", zero=3), one("ZeRO-3", zero=3))
    assert rows == [["zero", "msctl train"], ["3", "no"], ["3", "no"]]
    assert "`msctl train` does not run rank 1, 2: ZeRO-3\n" in talk
    rows, _ = more(one(cp=2, sequence_parallel=False), one(ep=4, switches={"overlap_dp": False}))
    assert rows == [["sequence parallel", "cp", "ep", "switches"], ["no", "2", "1", "-"],
                    ["yes", "1", "4", "overlap_dp off"]]  # fmt: skip
