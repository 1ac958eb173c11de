import pytest

from engine.health.collective import Measured, judge_node, run_ranks
from engine.health.look import Look
from engine.health.profile import Bar, Profile
from engine.health.recording import RecordedProbe, Recording


def look(**profile):
    return Look(probe=RecordedProbe(Recording()), profile=Profile(**profile))


def test_a_lost_rank_a_wrong_value_and_a_low_rate_fail():
    good = Measured(2e9, 0.1)
    assert judge_node(look(), [good, good], "gloo")[0].status == "ok"
    lost = judge_node(look(), [good, "did not answer"], "gloo")[0]
    assert (lost.status, lost.action) == ("fail", "evict")
    assert "rank 1: did not answer" in lost.message
    wrong = judge_node(look(), [Measured(2e9, 0.1, "element 3 is 1, not 2"), good], "gloo")[0]
    assert (wrong.status, wrong.action) == ("fail", "rma")
    slow = look(bars={"comm.node": Bar(at_least=3e9, source="learned from 4 nodes")})
    (result,) = judge_node(slow, [good, good], "gloo")
    assert (result.status, result.bar) == ("fail", "learned from 4 nodes")


@pytest.mark.multi
@pytest.mark.slow
def test_real_ranks_exchange_right_values():
    pytest.importorskip("torch")
    rows = run_ranks(3, 3 << 20, backend="gloo")
    assert all(isinstance(row, Measured) and row.wrong == "" for row in rows), rows
    assert all(row.bytes_per_s > 1e6 for row in rows)
