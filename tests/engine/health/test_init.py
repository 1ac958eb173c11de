"""How long groups take to start: judged, and measured for real."""

import pytest

pytest.importorskip("torch")

from engine.health.init import Started, judge, layout_of, start_ranks, startup
from engine.health.look import Look
from engine.health.probe import RealProbe
from engine.health.profile import Bar, Profile
from engine.health.recording import RecordedProbe, Recording


def look(**profile):
    return Look(probe=RecordedProbe(Recording()), profile=Profile(**profile))


@pytest.mark.parametrize(
    ("world", "degrees"), [(8, (2, 2, 2)), (4, (2, 2, 1)), (6, (2, 1, 3)), (3, (1, 1, 3))]
)
def test_the_layout_has_groups_of_each_kind_where_they_fit(world, degrees):
    layout = layout_of(world)
    assert (layout.tp, layout.pp, layout.dp) == degrees


def test_the_slowest_rank_is_shown_against_the_bar():
    rows = [Started(0.1, 0.2, 0.05), Started(0.3, 0.2, 0.05)]
    well = judge(look(), "redis", rows, ", 20 store calls")
    assert (well.status, well.target) == ("ok", "redis")
    assert well.measured == pytest.approx(0.55)
    assert "rendezvous 300 ms, groups 200 ms, first collectives 50" in well.message
    assert well.message.endswith("20 store calls")
    slow = judge(look(bars={"comm.init": Bar(at_most=0.5, source="site")}), "tcp", rows, "")
    assert (slow.status, slow.bar) == ("warn", "site")
    lost = judge(look(), "tcp", [rows[0], "3 of 4 ranks came"], "")
    assert lost.status == "fail"
    assert "rank 1: 3 of 4 ranks came" in lost.message


@pytest.mark.multi
@pytest.mark.slow
def test_real_ranks_start_over_both_stores():
    probe = RealProbe(env={}, node="here")
    found = startup(Look(probe=probe, profile=Profile(bars={"comm.init": Bar(at_most=120.0)})))
    assert [r.target for r in found] == ["redis", "tcp"]
    assert {r.status for r in found} <= {"ok", "skip"}


@pytest.mark.multi
def test_a_store_that_is_not_there_is_the_reason(monkeypatch):
    monkeypatch.setattr("engine.health.init._TIMEOUT_S", 1.0)
    rows = start_ranks(2, {"store_url": "redis://:wrong@127.0.0.1:1/0"})
    assert all("does not answer" in row for row in rows)
