import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data.share import Share
from engine.spec.recipe import BatchSpec


def test_micro_batches_go_round_the_replicas():
    share = Share(BatchSpec(global_batch=16, micro_batch=4), dp=2, replica=1)
    assert share.positions(0).tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert share.positions(3).tolist() == [[52, 53, 54, 55], [60, 61, 62, 63]]


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**9))
def test_replicas_share_a_step_without_rest(dp, size, num, step):
    batch = BatchSpec(global_batch=dp * size * num, micro_batch=size)
    found = [
        p
        for replica in range(dp)
        for p in Share(batch, dp=dp, replica=replica).positions(step).ravel().tolist()
    ]
    assert sorted(found) == list(range(step * batch.global_batch, (step + 1) * batch.global_batch))


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="does not divide"):
        Share(BatchSpec(global_batch=6, micro_batch=2), dp=2, replica=0)
    with pytest.raises(ValueError, match="replica 2"):
        Share(BatchSpec(global_batch=4), dp=2, replica=2)
