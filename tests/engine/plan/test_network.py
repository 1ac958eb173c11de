import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.explain import _faster
from engine.plan.network import message_s, ring_s
from engine.plan.setup import PlanLayout, single
from tests.engine.plan.case import job, replace

A100 = job("175b", gpus=128)
SIZES = st.floats(1e3, 1e10)


def test_one_rank_talks_to_nobody():
    assert ring_s(A100, bytes_=1e9, ranks=1.0, stride=1.0) == 0.0


MEASURED_A100 = (  # all-reduce bus bandwidth, GB/s, of 8 GPUs in a node (public nccl-tests logs)
    (64 * 2**20, 207e9), (2**30, 231e9),
)  # fmt: skip
TOLERANCE = 0.15


@pytest.mark.parametrize(("size", "bus"), MEASURED_A100)
def test_all_reduce_in_a_node_has_the_measured_bus_bandwidth(size, bus):
    seconds = 2 * ring_s(A100, bytes_=float(size), ranks=8.0, stride=1.0)
    assert 2 * size * 7 / 8 / seconds == pytest.approx(bus, rel=TOLERANCE)


def test_all_reduce_across_16_nodes_is_near_the_measured_128_gb_per_s():
    seconds = 2 * ring_s(A100, bytes_=2.0**30, ranks=128.0, stride=1.0)
    assert 2 * 2**30 * 127 / 128 / seconds == pytest.approx(128e9, rel=0.25)


def test_strided_groups_share_a_node_s_cards():
    whole = ring_s(A100, bytes_=1e9, ranks=16.0, stride=1.0)
    strided = ring_s(A100, bytes_=1e9, ranks=16.0, stride=8.0)
    assert strided > 4 * whole


@given(SIZES, st.integers(2, 512), st.sampled_from([1.0, 2.0, 8.0]), st.floats(1, 16))
def test_more_bandwidth_is_never_slower(size, ranks, stride, factor):
    better = replace(A100, cluster=_faster(A100.cluster, intra=factor, inter=factor))
    before = ring_s(A100, bytes_=size, ranks=float(ranks), stride=stride)
    assert ring_s(better, bytes_=size, ranks=float(ranks), stride=stride) <= before * (1 + 1e-12)


@given(SIZES, SIZES)
def test_more_bytes_are_never_faster(a, b):
    small, large = sorted((a, b))
    before = ring_s(A100, bytes_=small, ranks=16.0, stride=1.0)
    assert before <= ring_s(A100, bytes_=large, ranks=16.0, stride=1.0) * (1 + 1e-9)


def test_a_message_inside_a_node_takes_the_inner_link():
    near = message_s(A100, single(PlanLayout(tp=2, pp=4)), bytes_=1e8)
    far = message_s(A100, single(PlanLayout(tp=8, pp=8)), bytes_=1e8)
    assert near * 5 < far
    assert message_s(A100, single(PlanLayout(tp=8, dp=2)), bytes_=1e8) == 0.0
