"""What `msctl ckpt show` and `diff` say of a checkpoint."""

import shutil

import msgspec
import pytest
import torch

from engine.ckpt.catalog import read_manifest
from engine.ckpt.dcp import export_dcp, import_dcp
from engine.ckpt.manifest import Manifest, encode
from engine.ckpt.reshard import reshard
from engine.ckpt.show import Difference, diff, shards_of, show
from engine.ckpt.store import open_store
from engine.errors import CheckpointError
from engine.spec.layout import ParallelLayout
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
        (lambda m: m.update(created_s=1.0, world=9), []),
    ],
)  # fmt: skip
def test_each_difference_is_one_line(saved, other, edit, found):
    change(other, edit)
    assert diff(saved, other) == [Difference(what=w, left=x, right=y) for w, x, y in found]
    mirrored = [(d.what, d.left) for d in diff(other, saved) if d.what != "recipe"]
    assert mirrored == [(w, y) for w, _, y in found if w != "recipe"]


@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (1, 1), (1, 3), (2, 2)])
def test_equal_contents_do_not_differ_under_another_layout(saved, tmp_path, tp, dp, monkeypatch):
    monkeypatch.setattr("engine.ckpt.show._BLOCK", 100)  # many blocks, cut inside of tensors
    save(tmp_path, 7, tp, dp, dense(torch.float32))
    seen = []
    assert diff(saved, tmp_path, progress=lambda done, total: seen.append((done, total))) == []
    assert not seen or seen[-1] == (3 * 4 * 232, 3 * 4 * 232)


def test_a_reshard_and_a_round_trip_by_dcp_have_the_same_contents(saved, tmp_path):
    layout = ParallelLayout(tp=4)
    reshard(saved, tmp_path / "cut", layout)
    assert diff(saved, tmp_path / "cut") == [Difference(what="layout.tp", left="1", right="4")]
    export_dcp(saved, tmp_path / "dcp")
    import_dcp(tmp_path / "dcp", tmp_path / "back")
    assert diff(saved, tmp_path / "back") == []


def test_the_tensors_whose_contents_differ_are_named(saved, tmp_path):
    state = dense(torch.float32)
    state["layers.0.o.weight", "exp_avg"][3, 5] += 1
    state["embed.weight", "param"][:2] = 9
    save(tmp_path, 7, 1, 2, state)
    assert diff(saved, tmp_path) == [
        Difference(what="embed.weight (param)", left="content", right="16 of 96 elements differ"),
        Difference(what="layers.0.o.weight (exp_avg)", left="content",
                   right="1 of 128 elements differ"),
    ]  # fmt: skip


def test_a_damaged_checkpoint_is_not_compared(saved, other):
    path = next((other / NAME).glob("*.safetensors"))
    save_as = bytearray(path.read_bytes())
    save_as[-1] ^= 1
    path.write_bytes(save_as)
    change(other, lambda m: m["files"][0].update(digests="0" * 32))
    with pytest.raises(CheckpointError, match="is damaged"):
        diff(saved, other)


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
