"""Loading: bitwise, the newest whole checkpoint, and agreement of all ranks on which that is."""

import dataclasses
import shutil

import msgspec
import pytest
import torch

from engine.ckpt.local_store import LocalStore
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.restore import _candidates, _numbers, _worst, load_checkpoint
from engine.ckpt.save import save_checkpoint
from engine.errors import CheckpointError, MissingError
from tests.engine.ckpt.state import Ranks, dense, pieces_of, save

F32 = torch.float32


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Steps 4 and 8 of two ranks, each with values of its own."""
    root = tmp_path_factory.mktemp("written")
    for step in (4, 8):
        save(root, step, 1, 2, dense(F32, seed=step))
    return root


@pytest.fixture
def root(written, tmp_path):
    return shutil.copytree(written, tmp_path / "root")


def flip(root, step, file):
    """One bit in the middle of the data."""
    path = root / f"step-{step:08d}" / f"rank-{file:05d}.safetensors"
    data = bytearray(path.read_bytes())
    data[4096 + (len(data) - 4096) // 2] ^= 1
    path.write_bytes(data)


def holds(pieces, seed, world=1, rank=0):
    want = pieces_of(rank, 1, world, F32, dense(F32, seed=seed))
    return all(torch.equal(p.tensor, w.tensor) for p, w in zip(pieces, want, strict=True))


def test_the_newest_of_a_folder_or_the_one_that_is_named(root):
    pieces = pieces_of(0, 1, 1, F32)
    assert load_checkpoint(root, pieces).step == 8
    assert holds(pieces, 8)
    meta = load_checkpoint(f"{root}/step-00000004/", pieces)
    assert (meta.step, meta.rng) == (4, {"k": 1})
    assert holds(pieces, 4)


def test_a_damaged_one_is_passed_over_and_said(root, caplog):
    flip(root, 8, 1)
    pieces = pieces_of(0, 1, 1, F32)
    assert load_checkpoint(root, pieces).step == 4
    assert holds(pieces, 4)
    assert "step-00000008 cannot be loaded" in caplog.text
    assert "chunk 0" in caplog.text


def test_the_newest_ones_damage_is_the_error_if_none_is_whole(root):
    flip(root, 8, 1)
    flip(root, 4, 0)
    with pytest.raises(CheckpointError, match="step-00000008/rank-00001"):
        load_checkpoint(root, pieces_of(0, 1, 1, F32))


def test_a_named_one_has_no_substitute(root):
    flip(root, 8, 1)
    with pytest.raises(CheckpointError, match="step-00000008/rank-00001"):
        load_checkpoint(root / "step-00000008", pieces_of(0, 1, 1, F32))
    (root / "step-00000004" / "COMMITTED").unlink()
    with pytest.raises(CheckpointError, match="no COMMITTED marker"):
        load_checkpoint(root / "step-00000004", pieces_of(0, 1, 1, F32))
    with pytest.raises(CheckpointError):
        load_checkpoint(root / "step-00000099", [])


def test_nothing_to_load_says_how_to_start(tmp_path):
    with pytest.raises(CheckpointError, match="no committed checkpoint here") as caught:
        load_checkpoint(tmp_path, pieces_of(0, 1, 1, F32))
    assert "without resuming" in caught.value.remedy


def test_only_what_is_wanted_is_read(root):
    flip(root, 8, 1)
    first = [p for p in pieces_of(0, 1, 2, F32) if p.name == "embed.weight"]
    assert load_checkpoint(root / "step-00000008", first).step == 8


def test_a_tensor_that_is_not_there_is_another_model(root):
    piece = pieces_of(0, 1, 1, F32)[0]
    others = [dataclasses.replace(piece, name=name) for name in ("b.weight", "a.weight")]
    with pytest.raises(CheckpointError, match=r"2 tensors .* are not in it, e\.g\. a\.weight"):
        load_checkpoint(root / "step-00000008", [piece, *others])


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(95), torch.zeros(97), torch.zeros(192)[::2], torch.zeros(96).to(torch.complex64)],
)
def test_memory_that_cannot_take_the_range_is_refused(root, tensor):
    piece = dataclasses.replace(pieces_of(0, 1, 1, F32)[0], tensor=tensor)
    with pytest.raises(CheckpointError, match=r"cannot take range \[0, 96\]"):
        load_checkpoint(root / "step-00000008", [piece])


def test_moments_that_were_never_saved_start_at_zero(tmp_path, caplog):
    kept = [p for p in pieces_of(0, 1, 1, F32, dense(F32, seed=1)) if p.slot == "param"]
    save_checkpoint(
        tmp_path, kept, meta=CheckpointMeta(step=0), rank=0, world=1, gather=lambda item: [item],
        barrier=lambda: None,
    )  # fmt: skip
    pieces = pieces_of(0, 1, 1, F32)
    load_checkpoint(tmp_path, pieces)
    for piece in pieces:
        same = next((k for k in kept if (k.name, k.slot) == (piece.name, piece.slot)), None)
        assert torch.equal(piece.tensor, same.tensor if same else torch.zeros_like(piece.tensor))
    assert caplog.text.count("weights only") == 1
    caplog.clear()
    load_checkpoint(tmp_path, [p for p in pieces if p.slot == "param"])
    assert not caplog.text


def test_parameters_that_want_gradients_are_filled(root):
    piece = pieces_of(0, 1, 1, F32)[0]
    leaf = piece.tensor.clone().requires_grad_()
    load_checkpoint(root, [dataclasses.replace(piece, tensor=leaf)])
    assert torch.equal(leaf.detach(), dense(F32, seed=8)[piece.name, piece.slot].reshape(-1))


def test_damage_that_one_rank_sees_makes_all_fall_back(root):
    flip(root, 8, 1)
    ranks, held = Ranks(2), [pieces_of(rank, 1, 2, F32) for rank in range(2)]
    metas = ranks.run(lambda r, gather: load_checkpoint(root, held[r], gather=gather))
    assert [m.step for m in metas] == [4, 4]
    assert holds(held[0], 4, 2, 0)
    assert holds(held[1], 4, 2, 1)


def test_a_rank_with_another_model_makes_all_fail(root):
    held = [pieces_of(rank, 1, 2, F32) for rank in range(2)]
    held[1][0] = dataclasses.replace(held[1][0], name="other")
    seen = [None, None]

    def work(rank, gather):
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(root, held[rank], gather=gather)
        seen[rank] = caught.value.what

    Ranks(2).run(work)
    assert seen[0] == f"rank 1: {seen[1]}"
    assert "e.g. other" in seen[1]


def test_rank_zero_decides_what_is_tried(root):
    store = LocalStore(root)
    assert _candidates(store, None) == ["step-00000008", "step-00000004"]
    other = msgspec.json.encode(["step-00000004"])
    assert _candidates(store, lambda mine: [other, mine]) == ["step-00000004"]


def test_the_first_error_of_any_rank_is_everybodys():
    fine, bad = msgspec.json.encode(None), msgspec.json.encode(("what", "do this"))
    mine = MissingError("mine", remedy="r")
    assert _worst(None, None) is None
    assert _worst(None, mine) is mine
    assert _worst(lambda item: [fine, item], None) is None
    other = _worst(lambda item: [item, fine, bad], None)
    assert (other.what, other.remedy) == ("rank 2: what", "do this")
    assert _worst(lambda item: [bad, item], mine) is mine


def test_numbers_are_compared_over_all_ranks():
    assert _numbers(None, 2.5) == [2.5]
    assert _numbers(lambda item: [item, b"3"], 2.5) == [2.5, 3.0]


@pytest.mark.gpu
def test_a_device_is_filled(root):
    pieces = [dataclasses.replace(p, tensor=p.tensor.cuda()) for p in pieces_of(0, 1, 1, F32)]
    load_checkpoint(root, pieces)
    assert holds([dataclasses.replace(p, tensor=p.tensor.cpu()) for p in pieces], 8)
