import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import LayoutError
from engine.spec.layout import AXES, Coord, ParallelLayout

DEGREE = st.integers(1, 6)
LAYOUTS = st.builds(ParallelLayout, tp=DEGREE, pp=DEGREE, dp=DEGREE, vpp=st.integers(1, 3))


@given(LAYOUTS)
def test_rank_and_coordinate_are_inverse(layout):
    assert [layout.rank(layout.coord(r)) for r in range(layout.world_size)] == list(
        range(layout.world_size)
    )


@given(LAYOUTS)
def test_groups_of_an_axis_partition_the_ranks(layout):
    for axis in AXES:
        groups = layout.groups(axis)
        assert sorted(r for group in groups for r in group) == list(range(layout.world_size))
        assert all(len(group) == layout.degree(axis) for group in groups)
        for group in groups:
            assert all(layout.group(axis, rank) == group for rank in group)


@given(LAYOUTS)
def test_a_group_differs_along_its_axis_only(layout):
    for axis in AXES:
        for group in layout.groups(axis):
            places = [layout.coord(rank) for rank in group]
            assert [getattr(place, axis) for place in places] == list(range(len(group)))
            assert len({place._replace(**{axis: 0}) for place in places}) == 1


def test_tensor_parallel_ranks_are_neighbours_and_pipeline_ranks_are_far():
    layout = ParallelLayout(tp=8, pp=8, dp=192)
    assert layout.group("tp", 0) == tuple(range(8))
    assert layout.group("dp", 0)[:3] == (0, 8, 16)
    assert layout.group("pp", 0)[:3] == (0, 1536, 3072)
    assert layout.coord(12287) == Coord(tp=7, dp=191, pp=7)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_chunks_share_the_layers_in_order(pp, vpp, each):
    layout = ParallelLayout(pp=pp, vpp=vpp)
    layers = each * pp * vpp
    held = [layer for chunk in range(layout.chunks) for layer in layout.layers_of(chunk, layers)]
    assert held == list(range(layers))


def test_what_does_not_fit_is_refused():
    with pytest.raises(LayoutError, match=r"does not divide model.layers = 7"):
        ParallelLayout(pp=2, vpp=2).layers_of(0, 7)
    with pytest.raises(LayoutError, match=r"rank 8 is outside a layout of 8 ranks"):
        ParallelLayout(tp=8).coord(8)


def test_replicas():
    layout = ParallelLayout(tp=2, pp=2, dp=3)
    assert [layout.replica_of(rank) for rank in layout.group("dp", 1)] == [0, 1, 2]
