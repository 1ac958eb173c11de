import pytest
import torch

from engine.ckpt.restore import load_checkpoint
from tests.engine.ckpt.state import dense, pieces_of, save


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("a", [(1, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("b", [(1, 1), (1, 3), (2, 2), (4, 2)])
def test_saved_under_one_layout_loads_bitwise_under_another(tmp_path, dtype, a, b):
    state = dense(dtype)
    save(tmp_path, 7, *a, state, dtype)
    for rank in range(b[0] * b[1]):
        want = pieces_of(rank, *b, dtype, state)
        got = pieces_of(rank, *b, dtype)
        meta = load_checkpoint(tmp_path, got)
        assert (meta.step, meta.rng) == (7, {"k": 1})
        for w, g in zip(want, got, strict=True):
            assert torch.equal(w.tensor, g.tensor), (w.name, w.slot)
