"""To torch.distributed.checkpoint and back, and an index that is somebody's attack."""

import os
import pickle
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as index

from engine.ckpt.catalog import read_manifest
from engine.ckpt.dcp import _all_there, export_dcp, import_dcp, key_of, name_of, read_index
from engine.ckpt.piece import SLOTS, Piece
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.show import diff
from engine.ckpt.store import open_store
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from tests.engine.ckpt.faulty import judge
from tests.engine.ckpt.state import SHAPES, dense, save


def test_an_export_is_what_torch_loads_and_comes_back_the_same(tmp_path):
    state = dense(torch.float32, 7)
    save(tmp_path / "ours", 7, 2, 2, state)
    report = export_dcp(tmp_path / "ours", tmp_path / "dcp")
    assert report.tensors == 1 + len(state)
    got = {key_of(n, s): torch.zeros(SHAPES[n]) for n, s in state}
    dcp.load(got, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    assert all(torch.equal(got[key_of(*place)], tensor) for place, tensor in state.items())
    name = import_dcp(tmp_path / "dcp", tmp_path / "back")
    assert name == "step-00000007"
    assert judge(tmp_path / "back", {7}) == {7}
    assert read_manifest(open_store(tmp_path / "back"), name).meta.rng == {"k": 1}


def test_what_torch_saved_is_imported(tmp_path):
    weight, moment = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5).bfloat16()
    nested = {
        "model": {"a.weight": weight},
        "optim": {"state": {"a.weight": {"exp_avg": moment, "step": torch.tensor(4.0)}}},
    }
    dcp.save(nested, checkpoint_id=str(tmp_path / "theirs"), no_dist=True)
    name = import_dcp(tmp_path / "theirs", tmp_path / "ours")
    assert verify(tmp_path / "ours" / name).ok
    manifest = read_manifest(open_store(tmp_path / "ours"), name)
    assert {n: sorted(t.slots) for n, t in manifest.tensors.items()} == {
        "a.weight": ["exp_avg", "param"]
    }
    export_dcp(tmp_path / "ours", tmp_path / "again")
    got = {"model.a.weight": torch.zeros(3, 5, dtype=torch.float64),
           "optim.state.a.weight.exp_avg": torch.zeros(3, 5).bfloat16()}  # fmt: skip
    dcp.load(got, checkpoint_id=str(tmp_path / "again"), no_dist=True)
    assert torch.equal(got["model.a.weight"], weight)
    assert torch.equal(got["optim.state.a.weight.exp_avg"], moment)


def test_an_import_puts_together_what_lies_in_parts(tmp_path):
    """As FSDP saves it: a tensor in pieces of its first dimension."""
    where = str(tmp_path / "theirs")
    whole = torch.arange(24.0).view(6, 4)
    dcp.save({"model.a.weight": whole}, checkpoint_id=where, no_dist=True)
    found = read_index((tmp_path / "theirs" / ".metadata").read_bytes(), "theirs")
    halves = {}
    for row in (0, 3):
        one = str(tmp_path / f"half-{row}")
        dcp.save({"model.a.weight": whole[row : row + 3].clone()}, checkpoint_id=one, no_dist=True)
        (tmp_path / f"half-{row}" / "__0_0.distcp").rename(tmp_path / "theirs" / f"{row}.distcp")
        halves[row] = read_index((tmp_path / f"half-{row}" / ".metadata").read_bytes(), "half")
    entry = found.state_dict_metadata["model.a.weight"]
    entry.chunks[:] = [
        index.ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([3, 4])) for row in (0, 3)
    ]
    found.storage_data = {
        index.MetadataIndex("model.a.weight", torch.Size([row, 0]), n): replace(
            next(iter(halves[row].storage_data.values())), relative_path=f"{row}.distcp"
        )
        for n, row in enumerate((0, 3))
    }
    (tmp_path / "theirs" / ".metadata").write_bytes(pickle.dumps(found))
    name = import_dcp(where, tmp_path / "ours")
    got = torch.empty(24)
    piece = Piece(name="a.weight", slot="param", global_shape=(6, 4), box=((0, 6), (0, 4)),
                  flat=(0, 24), tensor=got)  # fmt: skip
    load_checkpoint(tmp_path / "ours" / name, [piece])
    assert torch.equal(got.view(6, 4), whole)


def test_a_tensor_that_torch_wrote_after_its_memory_was_taken_back_is_an_error(tmp_path):
    """A torch that asks for tensors ahead would write nothing of the one before."""
    written = dcp.save({"model.w": torch.zeros(0)}, checkpoint_id=str(tmp_path / "a"), no_dist=True)
    _all_there(written, {"model.w": torch.zeros(0)})
    with pytest.raises(CheckpointError, match=r"of 4000000 bytes of model\.w"):
        _all_there(written, {"model.w": torch.zeros(1_000_000)})


def test_a_part_that_is_no_archive_or_another_tensor_is_an_error(tmp_path):
    for name, value in (("a", torch.zeros(3)), ("b", torch.zeros(4))):
        dcp.save({"model.w": value}, checkpoint_id=str(tmp_path / name), no_dist=True)
    data = tmp_path / "a" / "__0_0.distcp"
    shutil.copy(tmp_path / "b" / "__0_0.distcp", data)
    with pytest.raises(CheckpointError, match=r"model\.w is no torch.float32 of \[3\]"):
        import_dcp(tmp_path / "a", tmp_path / "ours")
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(CheckpointError, match=r"model\.w cannot be read"):
        import_dcp(tmp_path / "a", tmp_path / "ours")
    data.unlink()
    with pytest.raises(CheckpointError, match=r"model\.w cannot be read: FileNotFoundError"):
        import_dcp(tmp_path / "a", tmp_path / "ours")


@pytest.mark.parametrize("where", ["memory://test_dcp/a/b", "file://{tmp}/dcp"])
def test_a_url_is_written_and_read_where_it_points(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    where = where.format(tmp=tmp_path)
    state = dense(torch.float32, 7)
    save(tmp_path / "ours", 7, 2, 2, state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_dcp(tmp_path / "ours", where)
        name = import_dcp(where, "memory://test_dcp/back")
    assert not any(path.name.endswith(":") for path in tmp_path.iterdir())
    assert sorted(f.name for f in open_store(where).files("")) == [".metadata", "__0_0.distcp"]
    assert verify(f"memory://test_dcp/back/{name}").ok
    assert [d.what for d in diff(tmp_path / "ours", f"memory://test_dcp/back/{name}")] == []
    with pytest.raises(CheckpointError, match="already holds a checkpoint"):
        export_dcp(tmp_path / "ours", where)


def test_a_place_that_cannot_be_written_is_an_error_in_one_line(tmp_path):
    save(tmp_path / "ours", 7, 1, 1, dense(torch.float32, 7))
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file/sub: NotADirectoryError") as caught:
        export_dcp(tmp_path / "ours", tmp_path / "file" / "sub")
    assert "\n" not in caught.value.what


def test_names_and_keys_are_inverse():
    for name in SHAPES:
        for slot in SLOTS:
            assert name_of(key_of(name, slot)) == (name, slot)
    assert name_of("scheduler.last") is None


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


@pytest.mark.parametrize(
    "bad", [b"", b"\x80", pickle.dumps({"a": 1}), pickle.dumps(Attack()), pickle.dumps(os.system)]
)
def test_a_hostile_index_runs_nothing(tmp_path, monkeypatch, bad):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(bad)
    with pytest.raises(CheckpointError, match=r"\.metadata"):
        import_dcp(tmp_path / "dcp", tmp_path / "ours")
    assert not (tmp_path / "attacked").exists()


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \.metadata"):
        import_dcp(tmp_path, tmp_path / "ours")
