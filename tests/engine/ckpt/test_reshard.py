import itertools

import pytest
import torch

from engine.ckpt.catalog import find, read_manifest
from engine.ckpt.reshard import plan_reshard, reshard
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.verify import verify
from engine.errors import CheckpointError, LayoutError
from engine.spec.layout import ParallelLayout
from tests.engine.ckpt.state import dense, pieces_of, save

LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4)]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(LAYOUTS[:4:3], LAYOUTS)))
def test_a_rewritten_checkpoint_is_whole_and_equal(tmp_path, a, b):
    state = dense(torch.float64)
    save(tmp_path / "a", 3, *a, state, torch.float64)
    layout = ParallelLayout(tp=b[0], dp=b[1])
    reshard(tmp_path / "a", tmp_path / "b", layout, memory_bytes=4 << 20)
    assert verify(tmp_path / "b").ok
    assert read_manifest(*find(tmp_path / "b")).meta.layout == layout
    got, want = pieces_of(0, 1, 1, torch.float64), pieces_of(0, 1, 1, torch.float64, state)
    load_checkpoint(tmp_path / "b", got)
    assert all(torch.equal(g.tensor, w.tensor) for g, w in zip(got, want, strict=True))


def test_impossible_cuts_are_refused(tmp_path):
    save(tmp_path, 3, 1, 1, dense(torch.float32))
    with pytest.raises(LayoutError, match="does not divide dim 0 of embed"):
        plan_reshard(read_manifest(*find(tmp_path)), ParallelLayout(tp=5))
    with pytest.raises(CheckpointError, match="too little"):
        reshard(tmp_path, tmp_path / "b", ParallelLayout(), memory_bytes=1000)
