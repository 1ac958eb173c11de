"""Fewer replicas for fewer ranks: the batch stays, tp and pp stay, rules hold."""

import msgspec
import pytest

from engine.job.shrink import smaller
from engine.spec.layout import ParallelLayout
from engine.spec.recipe import BatchSpec
from tests.engine.train.single import recipe


def made(dp: int, batch: int):
    one = recipe()
    layout = ParallelLayout(tp=2, dp=dp, sequence_parallel=True)
    one = msgspec.structs.replace(one, layout=layout)
    return msgspec.structs.replace(one, batch=BatchSpec(global_batch=batch, micro_batch=1))


@pytest.mark.parametrize(
    ("dp", "batch", "ranks", "left"), [(4, 12, 6, 3), (4, 8, 6, 2), (4, 8, 7, 2), (4, 8, 2, 1)]
)
def test_as_many_replicas_as_fit_and_divide_the_batch(dp, batch, ranks, left):
    found = smaller(made(dp, batch), ranks)
    assert found is not None
    assert found.layout.dp == left
    assert (found.layout.tp, found.batch.global_batch) == (2, batch)


def test_replicas_are_compared_as_long_as_there_are_two():
    one = made(4, 8)
    one = msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, sdc_every=10))
    two, alone = smaller(one, 4), smaller(one, 2)
    assert two is not None
    assert alone is not None
    assert (two.job.sdc_every, alone.job.sdc_every) == (10, 0)


def test_too_few_ranks_for_one_replica_is_no_layout():
    assert smaller(made(4, 8), 1) is None
    assert smaller(made(1, 8), 2) is None, "nothing smaller than one replica"
