import random

import pytest
import torch

from engine.ckpt.catalog import catalog, latest
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from tests.engine.ckpt.state import dense, pieces_of, save


@pytest.fixture
def saved(tmp_path):
    save(tmp_path, 1, 1, 1, dense(torch.float32, 1))
    save(tmp_path, 2, 2, 2, dense(torch.float32, 2))
    return tmp_path


def files(folder):
    return sorted(p for p in folder.iterdir() if p.name != "ATTEMPT")


def test_a_fresh_checkpoint_is_whole(saved):
    report = verify(saved)
    assert report.ok
    assert report.step == 2
    assert report.bytes == sum(p.stat().st_size for p in saved.glob("step-00000002/*.safetensors"))


@pytest.mark.slow
def test_every_flipped_bit_is_found_and_never_loaded(saved):
    folder = saved / "step-00000002"
    draw = random.Random(5)
    for path in files(folder):
        good = path.read_bytes()
        for at in draw.sample(range(len(good)), min(40, len(good))):
            bad = bytearray(good)
            bad[at] ^= 1 << draw.randrange(8)
            path.write_bytes(bad)
            report = verify(folder)
            assert not report.ok, (path.name, at)
            if path.suffix == ".safetensors":
                assert report.damage[0].file == path.name
                assert report.damage[0].chunk == 0
        path.write_bytes(good)
    assert verify(folder).ok


def test_a_damaged_tensor_is_named(saved):
    path = saved / "step-00000002" / "rank-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    damage = verify(saved).damage
    assert [d.what for d in damage] == ["digest differs"]
    assert any(name.startswith("layers.0") for name in damage[0].tensors)


def test_load_falls_back_to_the_newest_good_one_and_says_so(saved, caplog):
    path = saved / "step-00000002" / "rank-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    pieces = pieces_of(0, 1, 1, torch.float32)
    assert load_checkpoint(saved, pieces).step == 1
    assert "chunk 0" in caplog.text
    expected = pieces_of(0, 1, 1, torch.float32, dense(torch.float32, 1))
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(pieces, expected, strict=True))
    with pytest.raises(CheckpointError, match="is damaged; it holds"):
        load_checkpoint(saved / "step-00000002", pieces)


@pytest.mark.parametrize("cut", [0, 1, 4096])
def test_truncation_is_found_without_reading(saved, cut):
    path = saved / "step-00000002" / "rank-00001.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert [i.state for i in catalog(saved)] == ["committed", "damaged"]
    assert latest(saved).name == "step-00000001"
    assert "instead of" in verify(saved / "step-00000002").damage[0].what


def test_a_folder_without_marker_is_no_checkpoint(saved):
    (saved / "step-00000002" / "COMMITTED").unlink()
    assert [i.state for i in catalog(saved)] == ["committed", "partial"]
    assert verify(saved).step == 1
    with pytest.raises(CheckpointError, match="never a complete checkpoint"):
        verify(saved / "step-00000002")


def test_progress_counts_every_byte_once(saved):
    seen: list[tuple[int, int]] = []
    report = verify(saved, threads=1, progress=lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {report.bytes}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == report.bytes
    assert len(seen) == report.chunks > 1


def test_damage_names_the_file_that_has_it(saved):
    folder = saved / "step-00000002"
    short, gone = folder / "rank-00001.safetensors", folder / "rank-00002.safetensors"
    short.write_bytes(short.read_bytes()[:-1])
    gone.unlink()
    damage = verify(saved).damage
    assert [d.file for d in damage] == [short.name, gone.name]
    assert all(d.what.startswith(d.file) for d in damage)


def test_a_damaged_manifest_is_the_folders_damage(saved):
    folder = saved / "step-00000002"
    manifest = folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-2])
    report = verify(folder)
    (damage,) = report.damage
    assert (report.ok, report.step, report.chunks, report.bytes) == (False, -1, 0, 0)
    assert damage.file == "step-00000002"
    assert "manifest" in damage.what
