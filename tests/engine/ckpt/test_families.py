"""Names, shapes and settings of Hugging Face families, by arithmetic and by their own words."""

from math import prod

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ckpt.families import FAMILIES, family_named, family_of
from engine.ckpt.partition import shape_of
from engine.errors import CheckpointError
from engine.spec.model import ModelSpec

ONE = {"layers": 1, "hidden": 16, "heads": 4, "vocab": 32, "seq": 8, "ffn": 24}
KINDS = {
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "position": "rotary"},
    "gpt2": {},
    "gpt_neox": {"block": "parallel", "position": "rotary"},
}


def model(name, **changes):
    return ModelSpec(**ONE | KINDS[name] | changes)


@st.composite
def specs(draw):
    name = draw(st.sampled_from(sorted(KINDS)))
    heads = draw(st.sampled_from([1, 2, 4]))
    sizes = {
        "layers": draw(st.integers(1, 4)), "heads": heads,
        "hidden": heads * draw(st.integers(1, 8)), "vocab": draw(st.integers(1, 99)),
        "seq": draw(st.integers(1, 99)), "ffn": draw(st.integers(1, 99)),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
    }  # fmt: skip
    if name != "gpt2":
        sizes |= {"tied": draw(st.booleans()), "rope_theta": draw(st.sampled_from([1e4, 5e5]))}
    if name == "llama":
        sizes |= {"kv_heads": draw(st.sampled_from([heads, 1])), "bias": draw(st.booleans()),
                  "head_dim": draw(st.sampled_from([0, 4]))}  # fmt: skip
    return name, model(name, **sizes)


@given(specs())
def test_a_config_says_all_that_the_spec_says(named):
    name, spec = named
    family = family_of(spec)
    assert family.name == name
    assert family_named(family.config(spec)["model_type"]) is family
    assert msgspec.convert(family.spec(family.config(spec)), ModelSpec) == spec


@given(specs())
def test_links_hold_every_parameter_of_the_model(named):
    name, spec = named
    links = family_of(spec).links(spec)
    ours = [one for link in links for one in link.ours]
    assert sum(prod(shape_of(spec, one)) for one in set(ours)) == spec.params
    twice = {one for one in ours if ours.count(one) > 1}
    norms = {f"layers.{i}.both.norm.{k}" for i in range(spec.layers) for k in ("weight", "bias")}
    assert twice == (norms if name == "gpt_neox" else set())
    assert len({link.foreign for link in links}) == len(links)


LAYER = {
    "llama": """model.layers.0.input_layernorm.weight model.layers.0.post_attention_layernorm.weight
        model.layers.0.self_attn.q_proj.weight model.layers.0.self_attn.k_proj.weight
        model.layers.0.self_attn.v_proj.weight model.layers.0.self_attn.o_proj.weight
        model.layers.0.mlp.gate_proj.weight model.layers.0.mlp.up_proj.weight
        model.layers.0.mlp.down_proj.weight model.embed_tokens.weight model.norm.weight
        lm_head.weight""",
    "gpt2": """transformer.h.0.ln_1 transformer.h.0.attn.c_attn transformer.h.0.attn.c_proj
        transformer.h.0.ln_2 transformer.h.0.mlp.c_fc transformer.h.0.mlp.c_proj transformer.ln_f
        transformer.wte.weight transformer.wpe.weight""",
    "gpt_neox": """gpt_neox.layers.0.input_layernorm gpt_neox.layers.0.post_attention_layernorm
        gpt_neox.layers.0.attention.query_key_value gpt_neox.layers.0.attention.dense
        gpt_neox.layers.0.mlp.dense_h_to_4h gpt_neox.layers.0.mlp.dense_4h_to_h
        gpt_neox.final_layer_norm gpt_neox.embed_in.weight embed_out.weight""",
}
"""State of the families' own one-layer models; names without an end have weight and bias."""


@pytest.mark.parametrize("name", KINDS)
def test_names_are_the_familys_own(name):
    spec = model(name, tied=name == "gpt2", bias=name != "llama")
    whole = [
        n if n.endswith(".weight") else (f"{n}.weight", f"{n}.bias") for n in LAYER[name].split()
    ]
    wanted = {n for entry in whole for n in ([entry] if isinstance(entry, str) else entry)}
    assert {link.foreign for link in family_of(spec).links(spec)} == wanted


def test_biases_of_llama_are_on_all_linear_layers_and_no_norm():
    links = family_of(spec := model("llama", bias=True)).links(spec)
    biases = sorted(link.foreign.split(".")[-2] for link in links if link.foreign.endswith("bias"))
    assert biases == sorted(f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down"))


def test_forms_are_those_of_the_stored_matrices():
    def forms(name):
        spec = model(name)
        return {link.foreign.partition("0.")[2]: link.form for link in family_of(spec).links(spec)}

    gpt2, neox = forms("gpt2"), forms("gpt_neox")
    assert gpt2["attn.c_attn.weight"] == "joined_transposed"
    assert gpt2["attn.c_attn.bias"] == "joined"
    assert {gpt2[f"{n}.weight"] for n in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")} == {
        "transposed"
    }
    assert {gpt2[f"{n}.bias"] for n in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")} == {"same"}
    assert neox["attention.query_key_value.weight"] == "by_head"
    assert neox["attention.query_key_value.bias"] == "by_head"
    assert {neox["attention.dense.weight"], neox["mlp.dense_h_to_4h.weight"]} == {"same"}
    links = family_of(model("gpt2")).links(model("gpt2"))
    joined = next(link for link in links if link.foreign.endswith("c_attn.weight"))
    assert joined.ours == tuple(f"layers.0.attn.{x}.weight" for x in "qkv")


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("llama", {"norm": "layernorm"}, "llama: norm is layernorm, not rmsnorm"),
        ("llama", {"block": "parallel"}, "llama: block is parallel, not serial"),
        ("llama", {"activation": "gelu"}, "llama: activation is gelu"),
        ("llama", {"position": "none"}, "llama: position is none"),
        ("llama", {"window": 4}, "llama: window is 4, not 0"),
        ("gpt2", {"bias": False}, "gpt2: bias is False"),
        ("gpt2", {"tied": False}, "gpt2: tied is False"),
        ("gpt2", {"kv_heads": 2}, "gpt2: kv_heads is 2, not 4"),
        ("gpt2", {"head_dim": 8}, "gpt2: head_dim is 8, not 4"),
        ("gpt_neox", {"window": 4}, "gpt_neox: window is 4"),
        ("gpt_neox", {"head_dim": 8}, "gpt_neox: head_dim is 8"),
        ("gpt_neox", {"bias": False}, "gpt_neox: bias is False"),
    ],
)
def test_a_model_that_no_family_holds_exactly_hears_why(name, change, says):
    with pytest.raises(CheckpointError, match=says) as caught:
        family_of(model(name, **change))
    assert all(f"{family.name}: " in caught.value.what for family in FAMILIES)


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_parameters"),
        ("llama", {"mlp_bias": True}, "attention_bias, mlp_bias"),
        ("gpt2", {"activation_function": "relu"}, "activation_function"),
        ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt_neox", {"hidden_act": "gelu"}, "hidden_act"),
        ("gpt_neox", {"use_parallel_residual": False}, "use_parallel_residual"),
        ("gpt_neox", {"rope_parameters": None, "rotary_pct": 0.25}, "rotary_pct"),
        ("gpt_neox", {"rope_parameters": 0, "rope_scaling": {"type": "yarn"}}, "rope_parameters"),
        ("gpt_neox", {"rope_parameters": None, "rotary_pct": None}, "rotary_pct"),
    ],
)  # fmt: skip
def test_settings_that_would_make_another_model_are_refused(name, change, key):
    spec = model(name, bias=name != "llama")
    config = family_of(spec).config(spec) | change
    with pytest.raises(CheckpointError, match=f"config.json: {key} = "):
        family_of(spec).spec(config)


@pytest.mark.parametrize(
    ("name", "config", "wanted"),
    [
        ("llama", {"rope_theta": 5e5}, {"rope_theta": 5e5, "norm_eps": 1e-6, "kv_heads": 0}),
        ("llama", {}, {"rope_theta": 1e4, "tied": False, "bias": False, "head_dim": 0}),
        ("gpt2", {}, {"ffn": 0, "norm_eps": 1e-5}),
        ("gpt_neox", {"rotary_pct": 1.0, "rotary_emb_base": 7}, {"rope_theta": 7.0, "tied": False}),
    ],
)
def test_what_an_old_config_leaves_out_has_the_familys_default(name, config, wanted):
    sizes = {
        "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9,
        "max_position_embeddings": 7, "intermediate_size": 6,
        "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 7,
    }  # fmt: skip
    found = family_named(name).spec(sizes | config)
    assert {key: found[key] for key in wanted} == wanted
    assert (found["layers"], found["hidden"], found["heads"], found["seq"]) == (1, 8, 2, 7)


@pytest.mark.parametrize("name", ["bert", None, 7, "llama ", {}, "x" * 1000])
def test_other_model_types_are_not_read(name):
    with pytest.raises(CheckpointError, match="is not read") as caught:
        family_named(name)
    assert len(caught.value.what) < 100
