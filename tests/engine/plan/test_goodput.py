import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.goodput import Failures, goodput, spares


def test_the_best_interval_is_young_s():
    found = goodput(1536, Failures(ckpt_stall_s=30))
    assert found.best_ckpt_every_s == pytest.approx(math.sqrt(2 * 30 * 6330 * 3600 / 1536))


def test_the_paper_s_more_than_90_per_cent_follows_from_its_times():
    # Llama 3's failure rate on 1,536 nodes, 10 + 15 minutes a failure: 90.8 %
    found = goodput(1536, Failures(restart_s=900, ckpt_stall_s=0, ckpt_every_s=1e-3))
    assert found.job_mtbf_s / 3600 == pytest.approx(4.1, abs=0.05)
    assert found.effective == pytest.approx(0.908, abs=0.002)


@given(st.integers(1, 20000), st.floats(10, 20000))
def test_shares_add_up_and_no_interval_beats_the_best_by_much(nodes, every):
    failures = Failures(ckpt_every_s=every)
    found = goodput(nodes, failures)
    assert 0 <= found.effective <= 1
    best = goodput(nodes, Failures())
    assert best.effective >= found.effective - 0.01


def test_spares_are_a_poisson_quantile():
    failures = Failures(node_mtbf_h=2400, repair_h=24)
    count = spares(100, failures)  # mean 1
    tail = 1 - sum(math.exp(-1) / math.factorial(k) for k in range(count + 1))
    before = 1 - sum(math.exp(-1) / math.factorial(k) for k in range(count))
    assert tail <= 0.01 < before
