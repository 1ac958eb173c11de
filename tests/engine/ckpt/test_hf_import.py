"""Hugging Face folders made by the safetensors library: values, and folders that lie."""

import json
import uuid

import numpy as np
import pytest
from safetensors.numpy import load, save

from engine.ckpt.catalog import read_manifest
from engine.ckpt.families import Link, family_named
from engine.ckpt.geometry import whole
from engine.ckpt.hf_import import _take, import_hf
from engine.ckpt.partition import shape_of
from engine.ckpt.reading import Want, fill
from engine.ckpt.store import open_store
from engine.ckpt.verify import verify
from engine.errors import CheckpointError
from engine.spec.model import ModelSpec

INDEX = "model.safetensors.index.json"
SIZES = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 12, "seq": 6, "ffn": 10}
SPECS = {
    "llama": ModelSpec(**SIZES, kv_heads=1, norm="rmsnorm", activation="swiglu",
                       position="rotary", bias=False, tied=False),
    "gpt2": ModelSpec(**SIZES),
    "gpt_neox": ModelSpec(**SIZES, block="parallel", position="rotary", tied=False),
}  # fmt: skip


class Folder:
    """A foreign folder in memory."""

    def __init__(self, root):
        self.url, self._store = f"{root}/hf", open_store(root)

    def put(self, name, data):
        self._store.put(f"hf/{name}", [memoryview(data)])

    def get(self, name):
        return self._store.get(f"hf/{name}", 1 << 20)

    def remove(self, name):
        self._store.remove([f"hf/{name}"])


@pytest.fixture
def hf():
    return Folder(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def out():
    return f"memory://{uuid.uuid4().hex}"


def foreign_shape(link, spec):
    first = shape_of(spec, link.ours[0])
    shape = (sum(shape_of(spec, name)[0] for name in link.ours), *first[1:])
    return shape[::-1] if link.form.endswith("transposed") else shape


def lay(hf, name, dtype=np.float32):
    """A model with numbered elements; the same for both norms of a parallel block."""
    family, spec = family_named(name), SPECS[name]
    tensors = {}
    for number, link in enumerate(family.links(spec)):
        shape = foreign_shape(link, spec)
        start = 0 if "layernorm" in link.foreign and name == "gpt_neox" else 1000 * number
        tensors[link.foreign] = (start + np.arange(np.prod(shape))).reshape(shape).astype(dtype)
    hf.put("model.safetensors", save(tensors))
    hf.put("config.json", json.dumps(family.config(spec)).encode())
    return tensors


def imported(root, name):
    """One of our tensors from the checkpoint."""
    store = open_store(root)
    manifest = read_manifest(store, "step-00000000")
    shape = manifest.tensors[name].shape
    out = np.empty(4 * int(np.prod(shape)), np.uint8)
    fill(store, "step-00000000", manifest, [Want(name, "param", "F32", whole(shape), out)])
    return out.view(np.float32).reshape(shape)


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_arrives_in_single_precision(hf, out, name):
    lay(hf, name, np.float16)
    assert import_hf(hf.url, out) == "step-00000000"
    assert verify(out).ok
    manifest = read_manifest(open_store(out), "step-00000000")
    assert manifest.elements == SPECS[name].params
    assert manifest.slots == ("param",)
    assert manifest.meta.run == "hf"
    assert manifest.meta.extra == {"imported": {"family": name, "from": "hf"}}
    assert "[model]" in manifest.meta.recipe_toml


def test_tensors_of_llama_are_equal(hf, out):
    theirs = lay(hf, "llama")
    import_hf(hf.url, out)
    for ours, name in (
        ("layers.1.attn.k.weight", "model.layers.1.self_attn.k_proj.weight"),
        ("head.weight", "lm_head.weight"),
    ):
        assert np.array_equal(imported(out, ours), theirs[name])


def test_gpt2_keeps_q_k_and_v_side_by_side_with_inputs_first(hf, out):
    theirs = lay(hf, "gpt2")
    import_hf(hf.url, out)
    fused = theirs["transformer.h.1.attn.c_attn.weight"]
    assert fused.shape == (8, 24)
    for index, name in enumerate("qkv"):
        ours = imported(out, f"layers.1.attn.{name}.weight")
        assert np.array_equal(ours.T, fused[:, 8 * index : 8 * index + 8])
        ours = imported(out, f"layers.1.attn.{name}.bias")
        bias = theirs["transformer.h.1.attn.c_attn.bias"]
        assert np.array_equal(ours, bias[8 * index : 8 * index + 8])
    up = theirs["transformer.h.0.mlp.c_fc.weight"]
    assert np.array_equal(imported(out, "layers.0.mlp.up.weight"), up.T)


def test_gpt_neox_keeps_q_k_and_v_of_a_head_together():
    fused = np.arange(24)
    link = Link("qkv", ("q", "k", "v"), "by_head")
    parts = [_take(link, fused, index, SPECS["gpt_neox"]).tolist() for index in range(3)]
    assert parts == [
        [0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 16, 17, 18, 19], [8, 9, 10, 11, 20, 21, 22, 23]
    ]  # fmt: skip
    rows = _take(link, np.arange(48).reshape(24, 2), 1, SPECS["gpt_neox"])
    assert rows[:, 0].tolist() == [8, 10, 12, 14, 32, 34, 36, 38]


def test_a_parallel_block_has_one_norm(hf, out):
    theirs = lay(hf, "gpt_neox")
    theirs["gpt_neox.layers.1.post_attention_layernorm.bias"][3] += 1
    hf.put("model.safetensors", save(theirs))
    with pytest.raises(CheckpointError, match=r"layers\.1\.input_layernorm\.bias and .* differ"):
        import_hf(hf.url, out)
    assert not open_store(out).folders()


def test_weights_in_several_files_are_found_by_the_index(hf, out):
    theirs = lay(hf, "llama")
    hf.remove("model.safetensors")
    names = sorted(theirs)
    for file, some in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        hf.put(file, save({n: theirs[n] for n in some}))
    index = {"weight_map": {n: "ab"[i % 2] + ".safetensors" for i, n in enumerate(names)}}
    hf.put(INDEX, json.dumps(index).encode())
    import_hf(hf.url, out)
    norm = imported(out, "final_norm.weight")
    assert np.array_equal(norm, theirs["model.norm.weight"])


def test_names_without_the_models_prefix_and_constants_of_old_exports_are_known(hf, out):
    theirs = lay(hf, "gpt2")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in theirs.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 6, 6), np.uint8)
    bare["h.0.attn.masked_bias"] = np.zeros((), np.float32)
    bare["lm_head.weight"] = bare["wte.weight"].copy()
    hf.put("model.safetensors", save(bare))
    import_hf(hf.url, out)
    embed = imported(out, "embed.weight")
    assert np.array_equal(embed, theirs["transformer.wte.weight"])


def write(name, text):
    return lambda hf: hf.put(name, text)


def config(**changes):
    def act(hf):
        before = json.loads(hf.get("config.json"))
        hf.put("config.json", json.dumps(before | changes).encode())

    return act


def tensors(**changes):
    def act(hf):
        held = load(hf.get("model.safetensors")) | changes
        hf.put("model.safetensors", save({k: v for k, v in held.items() if v is not None}))

    return act


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda hf: hf.remove("config.json"), "model_type = 'None'"),
        (write("config.json", b"[]"), "config.json: Expected `object`"),
        (write("config.json", b"\xff"), "config.json"),
        (write("config.json", b'{"a":' * 50_000), "config.json"),
        (config(model_type="bert"), "model_type = 'bert'"),
        (config(hidden_size=-8), "config.json"),
        (config(hidden_size=None), "config.json"),
        (config(rope_parameters=[1]), "config.json"),
        (config(rope_parameters={"rope_theta": 10**400}), "config.json"),
        (config(num_hidden_layers=10**9), "1000000000 layers, the files hold 21 ten"),
        (config(head_dim=3), "calls for"),
        (write(INDEX, b'{"weight_map": {"a": ["model.safetensors"]}}'), "no file "),
        (write(INDEX, b'{"weight_map": {"a": "../hf/model.safetensors"}}'), "no file '../hf"),
        (
            write(INDEX, b'{"weight_map": {"a": "pytorch_model.bin"}}'),
            "no file 'pytorch_model.bin'",
        ),
        (write(INDEX, b"{}"), "0 tensors"),
        (write(INDEX, b"{"), "index.json"),
        (write("model.safetensors", b""), "header of"),
        (write("model.safetensors", b"\1\0\0"), "header of"),
        (write("model.safetensors", (2).to_bytes(8, "little") + b"[]"), "not a table"),
        (tensors(spare=np.zeros(1, np.float32)), "1 tensors have no place here, e.g. spare"),
        (tensors(**{"model.norm.weight": None}), "tensor model.norm.weight is missing"),
        (tensors(**{"model.norm.weight": np.zeros((8, 1), np.float32)}), r"\[8, 1\], .* \[8\]"),
        (
            tensors(**{"model.norm.weight": np.zeros(8, np.int64)}),
            "norm.weight: elements of type I64",
        ),
    ],
)
def test_folders_that_lie_are_refused_before_anything_is_written(hf, out, act, says):
    lay(hf, "llama")
    act(hf)
    with pytest.raises(CheckpointError, match=says):
        import_hf(hf.url, out)
    assert not open_store(out).folders()
