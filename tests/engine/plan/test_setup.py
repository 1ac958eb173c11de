import numpy as np

from engine.plan.setup import Grid, PlanLayout, grid_of, single
from tests.engine.plan.case import job


def test_a_layout_survives_the_way_through_arrays():
    layouts = [
        PlanLayout(tp=8, pp=8, vpp=6, dp=192, recompute="selective", micro_batch=2),
        PlanLayout(cp=4, zero=3, sequence_parallel=False, shard=8),
    ]
    grid = grid_of(layouts)
    assert [grid.layout(i) for i in range(2)] == layouts
    assert single(layouts[0]) == Grid(*(column[0] for column in grid))


def test_only_axes_of_the_engine_become_its_own_layout():
    ours = PlanLayout(tp=2, pp=4, vpp=2, dp=3).parallel()
    assert ours is not None
    assert (ours.tp, ours.pp, ours.vpp, ours.dp) == (2, 4, 2, 3)
    assert PlanLayout(cp=2).parallel() is None
    assert PlanLayout(zero=3).parallel() is None


def test_micro_batches_are_rounded_up_where_the_batch_does_not_divide():
    grid = grid_of([PlanLayout(dp=64), PlanLayout(dp=64, micro_batch=3)])
    assert np.array_equal(job(batch=256).microbatches(grid), [4, 2])
