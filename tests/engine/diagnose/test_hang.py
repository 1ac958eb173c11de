"""From the wait-for graph to a hang's finding: who, how sure, with what evidence."""

import pytest

from engine.diagnose.hang import find_hang, rank_waits
from engine.diagnose.waits import Waiting


def waiting(rank, *to, at="step 6 all_reduce", **more):
    return Waiting(rank, frozenset(to), at, **more)


def hang(states, world):
    (finding,) = find_hang({s.rank: s for s in states}, range(world), source="dumps")
    assert (finding.kind, finding.source) == ("hang", "dumps")
    assert finding.next
    return finding


def test_nobody_waits_and_nothing_is_said():
    assert find_hang({}, range(8), source="dumps") == []
    assert find_hang({0: waiting(0)}, range(8), source="dumps") == []


def test_the_rank_that_all_wait_for():
    states = [waiting(r, 3, age_s=90.0, file=f"f{r}") for r in range(3)]
    stuck = waiting(3, at="step 6 data", age_s=61.0, file="f3")
    finding = hang([*states, stuck], 4)
    assert (finding.category, finding.ranks) == ("rank_blocked", (3,))
    assert finding.what == "rank 3 is stuck outside any collective, last seen at step 6 data"
    assert finding.why.startswith("3 of 4 ranks wait, directly or over others, for rank 3")
    assert "it waits for nobody" in finding.why
    assert "wait-for: rank 3 <- 3 ranks" in finding.why
    assert finding.confidence == pytest.approx(0.90)  # all three others were seen waiting
    (evidence,) = finding.evidence
    assert (evidence.file, evidence.rank, evidence.text) == ("f3", 3, "step 6 data, since 61 s")


def test_silence_of_the_stuck_rank_makes_it_surer():
    finding = hang([waiting(r, 3) for r in range(3)], 4)
    assert finding.confidence == pytest.approx(0.97)
    assert "no dump or heartbeat of rank 3" in finding.why
    assert finding.evidence[0].text == "left no dump and no heartbeat"


def test_few_seen_waiting_make_it_less_sure():
    states = [waiting(0, 4), *(waiting(r) for r in range(1, 5))]
    assert hang(states, 5).confidence == pytest.approx(0.55 + 0.35 / 4)


def test_a_sink_of_little_reach_is_named_only_if_it_is_silent():
    crowd = [waiting(r, 20, age_s=1.0) for r in range(10)]
    crowd += [waiting(10, 21), waiting(20), waiting(21)]
    assert hang(crowd, 11).ranks == (20,)
    crowd[-1] = waiting(21, silent=True)
    assert hang(crowd, 11).ranks == (20, 21)


def test_a_fifth_of_the_largest_reach_is_enough():
    crowd = [waiting(r, 20) for r in range(5)] + [waiting(5, 21), waiting(20), waiting(21)]
    assert hang(crowd, 6).ranks == (20, 21)


def test_beyond_sixteen_stuck_ranks_nobody_is_singled_out():
    sinks = range(1, 18)
    finding = hang([waiting(0, *sinks), *(waiting(r) for r in sinks)], 18)
    assert (finding.category, finding.ranks) == ("unknown_hang", ())
    finding = hang([waiting(0, *sinks[1:]), *(waiting(r) for r in sinks)], 18)
    assert (finding.category, len(finding.ranks)) == ("rank_blocked", 16)
    assert "16 ranks (2, 3, 4, 5, 6, 7, ...)" in finding.what


@pytest.mark.parametrize(("stuck", "named"), [(25, 25), (26, 0)])
def test_in_a_large_job_a_quarter_may_be_stuck(stuck, named):
    sinks = range(100 - stuck, 100)
    states = [waiting(r, *sinks) for r in range(100 - stuck)] + [waiting(r) for r in sinks]
    assert len(hang(states, 100).ranks) == named


@pytest.mark.parametrize(("world", "named"), [(19, tuple(range(3, 19))), (20, ())])
def test_of_very_many_ranks_without_evidence_none_is_named(world, named):
    lost = Waiting(2, frozenset(), "?", lost=True)
    assert hang([waiting(0, 2), waiting(1, 2), lost], world).ranks == named


def test_ranks_that_went_past_a_call_have_parted():
    states = [
        waiting(0, 1, at="step 6 norm", parted_from=frozenset({1}), age_s=3.0),
        waiting(1, 0, at="step 7 norm"),
    ]
    finding = hang(states, 2)
    assert (finding.category, finding.ranks, finding.confidence) == ("desync", (0, 1), 0.85)
    assert "rank 0 waits in step 6 norm for rank 1, which already passed it" in finding.what
    assert "rank 1 now at step 7 norm" in finding.why
    assert [e.rank for e in finding.evidence] == [0, 1]


def test_a_circle_through_different_calls_is_a_desync():
    finding = hang([waiting(0, 1, at="a"), waiting(1, 0, at="b"), waiting(2, 0, at="c")], 3)
    assert (finding.category, finding.ranks) == ("desync", (0, 1))
    assert finding.why == "0 in a, 1 in b"


def test_a_circle_in_one_call_points_at_nobody():
    finding = hang([waiting(0, 1), waiting(1, 0)], 2)
    assert (finding.category, finding.ranks, finding.confidence) == ("unknown_hang", (), 0.5)
    assert finding.what.startswith("2 ranks wait, most of them in step 6 all_reduce")
    assert "all of them reached the same call" in finding.why


def test_ranks_without_evidence_are_named_where_no_rank_stands_out():
    lost = Waiting(2, frozenset(), "?", lost=True)
    finding = hang([waiting(0, 2), waiting(1, 2), lost], 5)
    assert (finding.category, finding.ranks) == ("unknown_hang", (3, 4))
    assert finding.why == "no evidence of ranks 3, 4"


def test_a_report_holds_the_lowest_ranks_and_few_of_their_targets():
    states = {r: waiting(r, *range(100, 150), age_s=2.5) for r in (9, 1, 4)}
    rows = rank_waits(states, most=2)
    assert [row.rank for row in rows] == [1, 4]
    assert rows[0].waits_for == tuple(range(100, 132))
    assert (rows[0].at, rows[0].age_s, rows[0].silent) == ("step 6 all_reduce", 2.5, False)
