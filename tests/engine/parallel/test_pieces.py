"""Pieces of tensor-parallel GEMMs: the pipeline's theory, and what a recipe gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.pieces import pieces_of, pipelined_s
from engine.spec.cluster import ClusterSpec, DeviceSpec, LinkSpec
from engine.spec.shape import MOST_PIECES
from tests.engine.spec.samples import changed


@pytest.mark.parametrize(("pieces", "hidden"), [(1, 0.0), (2, 0.5), (4, 0.75), (8, 0.875)])
def test_equal_transfer_and_gemm_hide_all_but_one_piece(pieces, hidden):
    alone_s = 2.0
    whole_s = 2 * alone_s
    assert (whole_s - pipelined_s(pieces, alone_s, alone_s, 0.0)) / alone_s == pytest.approx(hidden)


@given(st.integers(1, 16), st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(0.0, 1e-3))
def test_a_pipeline_is_never_shorter_than_its_longer_lane(k, wire_s, gemm_s, latency_s):
    assert pipelined_s(k, wire_s, gemm_s, latency_s) >= max(wire_s, gemm_s) * (1 - 1e-9)


def with_cluster(latency_s: float):
    device = DeviceSpec(
        name="x", peak_flops_per_s={"fp32": 1e12}, memory_bytes=1 << 30, memory_bytes_per_s=1e12
    )
    link = LinkSpec(bytes_per_s=1e9, latency_s=latency_s)
    cluster = ClusterSpec(gpus_per_node=8, device=device, intra=link, inter=link)
    recipe = changed(overlap={"tp": True})
    return type(recipe)(**{
        name: getattr(recipe, name) for name in recipe.__struct_fields__ if name != "cluster"
    }, cluster=cluster)  # fmt: skip


def test_auto_weighs_latency_against_hiding():
    assert pieces_of(with_cluster(1.0)) == 2  # a second each: as few as there may be
    assert pieces_of(with_cluster(0.0)) == MOST_PIECES  # free: as many as there may be


def test_what_a_recipe_gets():
    assert pieces_of(changed(overlap={"tp": False})) == 1
    assert pieces_of(changed(overlap={"tp": True})) == 4
    assert pieces_of(changed(overlap={"tp": True, "tp_pieces": 8})) == 8
    assert pieces_of(changed(overlap={"tp": True}, layout={"tp": 1})) == 1


def test_on_a_cpu_only_a_described_link_or_a_wish_cuts():
    assert pieces_of(changed(overlap={"tp": True}), on_cpu=True) == 1
    assert pieces_of(changed(overlap={"tp": True, "tp_pieces": 4}), on_cpu=True) == 4
    assert pieces_of(with_cluster(0.0), on_cpu=True) == MOST_PIECES
