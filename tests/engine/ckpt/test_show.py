"""What `msctl ckpt show` and `diff` say of a checkpoint."""

import shutil

import msgspec
import pytest
import torch

from engine.ckpt.catalog import read_manifest
from engine.ckpt.manifest import Manifest, encode
from engine.ckpt.show import Difference, diff, shards_of, show
from engine.ckpt.store import open_store
from engine.errors import CheckpointError
from tests.engine.ckpt.state import dense, save

NAME = "step-00000007"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two tensor-parallel ranks."""
    root = tmp_path_factory.mktemp("saved")
    save(root, 7, 2, 1, dense(torch.float32))
    return root


@pytest.fixture
def other(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "other")


def change(root, edit):
    """Rewrite the manifest with its marker."""
    plain = msgspec.to_builtins(read_manifest(open_store(root), NAME))
    edit(plain)
    manifest = msgspec.convert(plain, Manifest)
    body, marker = encode(manifest)
    (root / NAME / "manifest.json").write_bytes(body)
    (root / NAME / "COMMITTED").write_bytes(marker)


def test_everything_that_a_manifest_says(saved):
    detail = show(saved)
    assert (detail.where, detail.step, detail.world) == (f"{saved}/{NAME}", 7, 2)
    assert detail.parameters == 12 * 8 + 8 * 16 + 8
    assert detail.files == 2
    assert detail.bytes == sum(p.stat().st_size for p in (saved / NAME).glob("*.safetensors"))
    assert detail.slots == ("param", "exp_avg", "exp_avg_sq")
    assert detail.rng == {"k": 1}
    assert detail.versions["torch"] == torch.__version__
    embed, o, norm = detail.tensors
    assert (embed.name, embed.shape, embed.dtype) == ("embed.weight", (12, 8), "F32")
    assert (embed.shards, embed.ranks, embed.bytes) == (6, (0, 1), 3 * 4 * 96)
    assert (o.bytes, norm.bytes) == (3 * 4 * 128, 3 * 4 * 8)
    assert norm.slots == detail.slots
    assert show(saved / NAME) == detail


def test_shards_tell_where_the_bytes_are(saved):
    rows = shards_of(saved, "layers.0.o.weight")
    assert [(r.slot, r.rank, r.box) for r in rows[:2]] == [
        ("param", 0, "[0:8, 0:8]"), ("param", 1, "[0:8, 8:16]")
    ]  # fmt: skip
    assert len(rows) == 6
    weight = dense(torch.float32)["layers.0.o.weight", "param"]
    for row, half in zip(rows[:2], weight.split(8, dim=1), strict=True):
        data = (saved / NAME / row.file).read_bytes()[row.offset : row.offset + row.bytes]
        assert data == half.contiguous().numpy().tobytes()
        assert row.flat == (0, 64)
    with pytest.raises(CheckpointError, match="no tensor is called 'absent'"):
        shards_of(saved, "absent")


def test_a_checkpoint_does_not_differ_from_its_copy(saved, other):
    assert diff(saved, other) == []


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda m: m["meta"].update(step=9), [("step", "7", "9")]),
        (lambda m: m["meta"]["layout"].update(tp=4, zero=1),
         [("layout.tp", "1", "4"), ("layout.zero", "2", "1")]),
        (lambda m: m["meta"].update(recipe_toml="x"), [("recipe", "as saved", "another one")]),
        (lambda m: m["tensors"].pop("embed.weight"),
         [("embed.weight", "[12, 8] (exp_avg F32, exp_avg_sq F32, param F32)", "absent")]),
        (lambda m: m["tensors"]["layers.0.norm.weight"]["slots"].pop("exp_avg"),
         [("layers.0.norm.weight", "[8] (exp_avg F32, exp_avg_sq F32, param F32)",
           "[8] (exp_avg_sq F32, param F32)")]),
        (lambda m: m["files"][1].update(digests="0" * 32),
         [("data", "2 files", "2 files, other content")]),
        (lambda m: m.update(created_s=1.0, world=9), []),
    ],
)  # fmt: skip
def test_each_difference_is_one_line(saved, other, edit, found):
    change(other, edit)
    assert diff(saved, other) == [Difference(what=w, left=x, right=y) for w, x, y in found]
    mirrored = [(d.what, d.left) for d in diff(other, saved) if d.what not in ("recipe", "data")]
    assert mirrored == [(w, y) for w, _, y in found if w not in ("recipe", "data")]


def test_types_of_slots_are_shown_together(other):
    def edit(manifest):
        manifest["tensors"]["embed.weight"]["slots"]["exp_avg"]["dtype"] = "BF16"

    change(other, edit)
    embed = show(other).tensors[0]
    assert embed.dtype == "BF16/F32"
    assert embed.bytes == (4 + 2 + 4) * 96


def test_nothing_to_show_is_an_error(tmp_path):
    for act in (show, lambda where: diff(where, where), lambda where: shards_of(where, "w")):
        with pytest.raises(CheckpointError, match="no committed checkpoint here"):
            act(tmp_path)
