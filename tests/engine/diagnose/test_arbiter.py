"""From many findings to one verdict: order of causes, merging of who and why."""

import pytest

from engine.diagnose.arbiter import arrange, conclude
from engine.diagnose.categories import CATEGORIES, next_step
from engine.diagnose.finding import Evidence, Finding


def found(kind="crash", category="code_error", **more):
    return Finding(kind=kind, category=category, what=more.pop("what", category), **more)


def order(*findings):
    """Categories in causal order, whichever way the findings came."""
    forward = [f.category for f in arrange(findings)]
    assert [f.category for f in arrange(reversed(findings))] == forward
    return forward


def test_what_ends_the_job_comes_before_what_slows_it_and_before_what_may_come():
    assert order(
        found("input", "unreadable", confidence=1.0),
        found("forecast", "perf_drift", cost=0.9, confidence=1.0),
        found("straggler", "perf_straggler", cost=0.9, confidence=1.0),
        found("crash", "code_error", confidence=0.1),
    ) == ["code_error", "perf_straggler", "perf_drift", "unreadable"]


def test_a_bare_wait_stands_behind_every_cause_however_sure_it_is():
    assert order(
        found("hang", "unknown_hang", confidence=0.99, ranks=(1,)),
        found("crash", "crash", confidence=0.9),
        found("hang", "rank_blocked", confidence=0.2, ranks=(2,)),
        found("crash", "code_error", confidence=0.1),
    ) == ["rank_blocked", "code_error", "crash", "unknown_hang"]


@pytest.mark.parametrize("who", [{"ranks": (3,)}, {"nodes": ("n3",)}, {"device": "GPU 3"}])
def test_a_vague_finding_that_names_somebody_counts_as_a_cause(who):
    assert order(
        found("crash", "crash", confidence=0.8, **who), found("crash", "code_error", confidence=0.5)
    ) == ["crash", "code_error"]


def test_surer_before_less_sure_and_of_equals_hardware_before_software():
    assert order(
        found(category="code_error", confidence=0.6), found(category="gpu_lost", confidence=0.4)
    ) == ["code_error", "gpu_lost"]
    # less than a tenth apart is as sure
    assert order(
        found(category="code_error", confidence=0.62), found(category="gpu_lost", confidence=0.58)
    ) == ["gpu_lost", "code_error"]


def test_slowness_goes_by_cost_and_not_by_confidence():
    assert order(
        found("perf", "perf_gc", cost=0.05, confidence=0.9),
        found("straggler", "perf_straggler", cost=0.2, confidence=0.5),
    ) == ["perf_straggler", "perf_gc"]


def test_the_graph_says_who_and_the_log_says_why():
    hang = found(
        "hang", "rank_blocked", ranks=(5,), confidence=0.8, source="dumps", why="seven wait",
        evidence=(Evidence(file="dump"),), step=6,
    )  # fmt: skip
    log = found(
        "crash", "cuda_oom", ranks=(5,), confidence=0.5, source="logs", why="two lines",
        nodes=("n1",), device="GPU 1", evidence=(Evidence(file="log", line=3),), next="shrink it",
    )  # fmt: skip
    for pair in ([hang, log], [log, hang]):
        (one,) = arrange(pair)
        assert (one.kind, one.category, one.ranks, one.nodes) == ("hang", "cuda_oom", (5,), ("n1",))
        assert one.device == "GPU 1"
        assert one.confidence == pytest.approx(1 - 0.2 * 0.5)
        assert one.why == "two lines; seven wait"
        assert [e.file for e in one.evidence] == ["log", "dump"]
        assert (one.step, one.next) == (6, "shrink it")
        assert set(one.source.split("+")) == {"dumps", "logs"}


def test_a_merged_finding_is_never_certain():
    a = found(ranks=(1,), confidence=1.0, source="a")
    (one,) = arrange([a, found(ranks=(1,), confidence=1.0, source="b")])
    assert one.confidence == 0.99


@pytest.mark.parametrize(
    "other",
    [
        {"ranks": (5,), "source": "logs"},  # one detector's findings stay apart
        {"ranks": (4, 5), "source": "dumps"},  # other ranks
        {"ranks": (), "source": "dumps"},
    ],
)
def test_what_is_not_about_the_same_ranks_stays_apart(other):
    assert len(arrange([found(ranks=(5,), source="logs"), found("hang", "desync", **other)])) == 2


def test_slowness_of_a_crashed_rank_is_not_its_crash():
    crash = found(ranks=(5,), source="logs")
    assert len(arrange([crash, found("straggler", "perf_straggler", ranks=(5,), source="p")])) == 2


def test_a_mark_of_nothing_is_healthy_and_of_no_input_unknown():
    assert conclude([], healthy="all is well").state == "healthy"
    assert conclude([], healthy="all is well").what == "all is well"
    nothing = conclude([], healthy="all is well", enough=False)
    assert nothing.state == "unknown"
    assert "--logs" in nothing.next


def test_an_unreadable_file_alone_does_not_make_a_job_faulty():
    assert conclude([found("input", "unreadable")], healthy="ok").state == "healthy"


@pytest.mark.parametrize(
    ("kind", "state"),
    [("crash", "faulty"), ("hang", "faulty"), ("perf", "degraded"), ("straggler", "degraded"),
     ("traffic", "degraded"), ("forecast", "degraded")],
)  # fmt: skip
def test_the_first_finding_is_the_verdict(kind, state):
    first = found(
        kind, "perf_gc", ranks=(2,), nodes=("n0",), device="GPU 1", why="because", confidence=0.7,
        evidence=(Evidence(file="f", line=9), Evidence(file="g")),
    )  # fmt: skip
    verdict = conclude([found("input", "unreadable"), first, found()], healthy="ok")
    assert (verdict.state, verdict.kind, verdict.category) == (state, kind, "perf_gc")
    assert (verdict.ranks, verdict.nodes, verdict.device) == ((2,), ("n0",), "GPU 1")
    assert (verdict.file, verdict.line, verdict.why) == ("f", 9, "because")
    assert verdict.confidence == 0.7
    assert verdict.next == CATEGORIES["perf_gc"].next == next_step("perf_gc")
    assert conclude([found(next="do this")], healthy="ok").next == "do this"
