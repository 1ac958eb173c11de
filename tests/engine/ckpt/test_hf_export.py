import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.ckpt.families import family_of
from engine.ckpt.hf_export import export_hf
from engine.ckpt.hf_import import import_hf
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.numbers import convert
from engine.ckpt.piece import Piece
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.save import save_checkpoint
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from engine.model.parameter import info_of
from engine.model.transformer import whole_model
from engine.spec.model import ModelSpec
from engine.spec.toml import dump_toml

SHAPE = dict(layers=2, hidden=16, heads=4, vocab=32, seq=8, ffn=24, head_dim=4)
LLAMA = ModelSpec(
    **SHAPE, kv_heads=2, norm="rmsnorm", activation="swiglu", position="rotary", bias=False,
    tied=False,
)  # fmt: skip
GPT2 = ModelSpec(**SHAPE)
NEOX = ModelSpec(**SHAPE, block="parallel", position="rotary", tied=False)
SPECS = [LLAMA, GPT2, NEOX]
IDS = ["llama", "gpt2", "gpt_neox"]


def weights(spec, seed=1):
    model = whole_model(spec, seed=seed, dtype=torch.float32)
    torch.manual_seed(seed)
    return {info_of(p).name: torch.randn(p.shape) for p in model.parameters()}


def as_pieces(tensors):
    return [
        Piece(name=n, slot="param", global_shape=tuple(t.shape), box=tuple((0, s) for s in t.shape),
              flat=(0, t.numel()), tensor=t.view(-1))
        for n, t in tensors.items()
    ]  # fmt: skip


def checkpoint(folder, spec, tensors):
    import msgspec

    recipe = dump_toml({"model": msgspec.to_builtins(spec)})
    save_checkpoint(
        folder, as_pieces(tensors), meta=CheckpointMeta(step=5, recipe_toml=recipe), rank=0,
        world=1, gather=lambda item: [item], barrier=lambda: None,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_out_and_back_is_bit_equal(tmp_path, spec):
    before = weights(spec)
    report = export_hf(checkpoint(tmp_path / "a", spec, before), tmp_path / "hf")
    assert report.family == family_of(spec).name
    import_hf(tmp_path / "hf", tmp_path / "b")
    assert verify(tmp_path / "b").ok
    after = {name: torch.zeros_like(t) for name, t in before.items()}
    moments = [
        Piece(name=p.name, slot="exp_avg", global_shape=p.global_shape, box=p.box, flat=p.flat,
              tensor=torch.ones_like(p.tensor))
        for p in as_pieces(after)
    ]  # fmt: skip
    meta = load_checkpoint(tmp_path / "b", as_pieces(after) + moments)
    assert meta.step == 0
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(m.tensor.any() for m in moments), "a weights-only checkpoint starts moments at 0"


def test_fused_projections_have_the_foreign_order(tmp_path):
    ours = weights(NEOX)
    export_hf(checkpoint(tmp_path / "a", NEOX, ours), tmp_path / "hf")
    fused = load_file(tmp_path / "hf/model.safetensors")
    qkv = fused["gpt_neox.layers.1.attention.query_key_value.weight"]
    for head in range(4):
        for index, name in enumerate("qkv"):
            rows = qkv[(head * 3 + index) * 4 : (head * 3 + index + 1) * 4]
            assert torch.equal(rows, ours[f"layers.1.both.{name}.weight"][head * 4 : head * 4 + 4])
    norms = [f"gpt_neox.layers.0.{n}_layernorm.bias" for n in ("input", "post_attention")]
    assert torch.equal(fused[norms[0]], fused[norms[1]])


def test_files_are_split_and_indexed(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.ckpt.hf_export.FILE_BYTES", 4000)
    ours = weights(LLAMA)
    report = export_hf(checkpoint(tmp_path / "a", LLAMA, ours), tmp_path / "hf", dtype="BF16")
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {
        p.name for p in (tmp_path / "hf").glob("*.safetensors")
    }
    assert report.files > 2
    got = load_file(tmp_path / "hf" / index["weight_map"]["model.layers.0.mlp.up_proj.weight"])
    want = ours["layers.0.mlp.up.weight"].bfloat16()
    assert torch.equal(got["model.layers.0.mlp.up_proj.weight"], want)
    import_hf(tmp_path / "hf", tmp_path / "b")
    back = {n: torch.zeros_like(t) for n, t in ours.items()}
    load_checkpoint(tmp_path / "b", as_pieces(back))
    assert all(torch.equal(back[n], ours[n].bfloat16().float()) for n in ours)


def test_bfloat16_rounds_like_torch():
    values = torch.cat(
        [torch.randn(5000), torch.tensor([0.0, -0.0, 1e-45, 3.4e38, float("inf"), float("nan")])]
    )
    words = convert(values.numpy(), "F32", "BF16")
    want = values.bfloat16().view(torch.int16).numpy().view(np.uint16)
    nan = np.isnan(values.numpy())
    assert np.array_equal(words[~nan], want[~nan])
    assert np.array_equal(
        convert(words, "BF16", "F32")[~nan], values.bfloat16().float().numpy()[~nan]
    )


def test_a_model_without_a_family_says_why(tmp_path):
    spec = ModelSpec(**SHAPE, block="parallel")
    with pytest.raises(CheckpointError, match="gpt_neox: position is learned, not rotary"):
        family_of(spec)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda hf: (hf / "config.json").write_text("{}"), "model_type"),
        (lambda hf: (hf / "config.json").write_text("[1"), "config.json"),
        (lambda hf: (hf / "model.safetensors").unlink(), "no file"),
        (lambda hf: (hf / "model.safetensors").write_bytes(b"\xff" * 64), "header of"),
        (lambda hf: edit(hf, vocab_size=31), "calls for"),
        (lambda hf: edit(hf, num_hidden_layers=3), "is missing"),
        (lambda hf: edit(hf, num_hidden_layers=1), "have no place"),
        (lambda hf: edit(hf, hidden_act="relu"), "hidden_act = relu"),
        (lambda hf: edit(hf, num_attention_heads="x"), "config.json"),
    ],
)
def test_broken_folders_are_refused(tmp_path, break_it, says):
    export_hf(checkpoint(tmp_path / "a", LLAMA, weights(LLAMA)), tmp_path / "hf")
    break_it(tmp_path / "hf")
    with pytest.raises(CheckpointError, match=says):
        import_hf(tmp_path / "hf", tmp_path / "b")


def edit(hf, **changes):
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps(config | changes))
