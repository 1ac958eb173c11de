"""How our parameter names and shapes relate to those of Hugging Face model families.

A family is a list of links, one per foreign tensor: which of ours make it up and in what form.
Llama covers RMSNorm + SwiGLU + rotary, GPT-2 the classic serial block, GPT-NeoX the parallel block
with rotary positions (its two norms are both our one norm).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from engine.errors import CheckpointError
from engine.spec.model import ModelSpec

Form = Literal["same", "transposed", "joined", "joined_transposed", "by_head"]
"""How a foreign tensor is made of ours.

same               equal
transposed         [out, in] is stored as [in, out]
joined             q, k, v stacked along the output
joined_transposed  the same, then transposed
by_head            q, k, v of each head next to each other: [heads, 3, head_dim, ...]
"""


class Link(NamedTuple):
    """One foreign tensor, our tensors it is made of, and how."""

    foreign: str
    ours: tuple[str, ...]
    form: Form = "same"


class Family(NamedTuple):
    """A Hugging Face model type."""

    name: str
    fits: Callable[[ModelSpec], str | None]
    """None if a model can be written in this family, else what stands against it."""

    links: Callable[[ModelSpec], list[Link]]
    config: Callable[[ModelSpec], dict[str, Any]]
    spec: Callable[[dict[str, Any]], dict[str, Any]]
    """From config.json the fields of our ModelSpec."""


def family_of(spec: ModelSpec) -> Family:
    """The family that holds a model exactly; CheckpointError with every reason if none does."""
    reasons = []
    for family in FAMILIES:
        why = family.fits(spec)
        if why is None:
            return family
        reasons.append(f"{family.name}: {why}")
    raise CheckpointError(
        f"no Hugging Face family holds this model exactly: {'; '.join(reasons)}",
        remedy="train with norm = rmsnorm, activation = swiglu, position = rotary (Llama), or with "
        "block = parallel, position = rotary, bias = true (GPT-NeoX)",
    )


def family_named(name: object) -> Family:
    """The family of a config.json's model_type."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise CheckpointError(
        f"model_type = {str(name)[:40]!r} is not read",
        remedy=f"convert a model of type {', '.join(family.name for family in FAMILIES)}",
    )


def _unlike(spec: ModelSpec, **wanted: object) -> str | None:
    for key, value in wanted.items():
        if getattr(spec, key) != value:
            return f"{key} is {getattr(spec, key)}, not {value}"
    return None


def _llama_fits(spec: ModelSpec) -> str | None:
    wanted = {"block": "serial", "norm": "rmsnorm", "activation": "swiglu", "position": "rotary"}
    return _unlike(spec, **wanted, window=0)


def _llama_links(spec: ModelSpec) -> list[Link]:
    links = [Link("model.embed_tokens.weight", ("embed.weight",))]
    kinds = ("weight", "bias") if spec.bias else ("weight",)
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        links.append(Link(f"{theirs}.input_layernorm.weight", (f"{ours}.attn.norm.weight",)))
        links.append(
            Link(f"{theirs}.post_attention_layernorm.weight", (f"{ours}.mlp.norm.weight",))
        )
        for kind in kinds:
            for x in "qkvo":
                links.append(
                    Link(f"{theirs}.self_attn.{x}_proj.{kind}", (f"{ours}.attn.{x}.{kind}",))
                )
            for x in ("gate", "up", "down"):
                links.append(Link(f"{theirs}.mlp.{x}_proj.{kind}", (f"{ours}.mlp.{x}.{kind}",)))
    links.append(Link("model.norm.weight", ("final_norm.weight",)))
    if not spec.tied:
        links.append(Link("lm_head.weight", ("head.weight",)))
    return links


def _llama_config(spec: ModelSpec) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": spec.rope_theta}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": spec.hidden, "intermediate_size": spec.ffn, "vocab_size": spec.vocab,
        "num_hidden_layers": spec.layers, "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim,
        "max_position_embeddings": spec.seq, "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta, "rope_parameters": rope,
        "attention_bias": spec.bias, "mlp_bias": spec.bias, "tie_word_embeddings": spec.tied,
    }  # fmt: skip


def _llama_spec(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    _refuse(config, "hidden_act", "silu")
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise _unread("rope_parameters", rope)
    if bool(config.get("attention_bias")) != bool(config.get("mlp_bias")):
        raise _unread("attention_bias, mlp_bias", "different values")
    return {
        "layers": config["num_hidden_layers"], "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"], "vocab": config["vocab_size"],
        "seq": config["max_position_embeddings"], "ffn": config["intermediate_size"],
        "kv_heads": config.get("num_key_value_heads") or 0, "head_dim": config.get("head_dim") or 0,
        "norm": "rmsnorm", "activation": "swiglu", "position": "rotary",
        "rope_theta": float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        "norm_eps": config.get("rms_norm_eps", 1e-6), "bias": bool(config.get("attention_bias")),
        "tied": bool(config.get("tie_word_embeddings")),
    }  # fmt: skip


def _gpt2_fits(spec: ModelSpec) -> str | None:
    wanted = {"block": "serial", "norm": "layernorm", "activation": "gelu", "position": "learned"}
    plain = {"bias": True, "tied": True, "window": 0, "kv_heads": spec.heads}
    return _unlike(spec, **wanted, **plain, head_dim=spec.hidden // spec.heads)


def _gpt2_links(spec: ModelSpec) -> list[Link]:
    links = [Link("transformer.wte.weight", ("embed.weight",))]
    links.append(Link("transformer.wpe.weight", ("position.weight",)))
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        for kind in ("weight", "bias"):
            matrix: Form = "transposed" if kind == "weight" else "same"
            qkv = tuple(f"{ours}.attn.{x}.{kind}" for x in "qkv")
            links += [
                Link(f"{theirs}.ln_1.{kind}", (f"{ours}.attn.norm.{kind}",)),
                Link(f"{theirs}.attn.c_attn.{kind}", qkv,
                     "joined_transposed" if kind == "weight" else "joined"),
                Link(f"{theirs}.attn.c_proj.{kind}", (f"{ours}.attn.o.{kind}",), matrix),
                Link(f"{theirs}.ln_2.{kind}", (f"{ours}.mlp.norm.{kind}",)),
                Link(f"{theirs}.mlp.c_fc.{kind}", (f"{ours}.mlp.up.{kind}",), matrix),
                Link(f"{theirs}.mlp.c_proj.{kind}", (f"{ours}.mlp.down.{kind}",), matrix),
            ]  # fmt: skip
    for kind in ("weight", "bias"):
        links.append(Link(f"transformer.ln_f.{kind}", (f"final_norm.{kind}",)))
    return links


def _gpt2_config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": spec.layers,
        "n_embd": spec.hidden, "n_head": spec.heads, "n_inner": spec.ffn, "n_positions": spec.seq,
        "vocab_size": spec.vocab, "activation_function": "gelu_new",
        "layer_norm_epsilon": spec.norm_eps, "tie_word_embeddings": True,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip


def _gpt2_spec(config: dict[str, Any]) -> dict[str, Any]:
    _refuse(config, "activation_function", "gelu_new", "gelu_pytorch_tanh")
    _refuse(config, "tie_word_embeddings", True)
    _refuse(config, "scale_attn_weights", True)
    _refuse(config, "scale_attn_by_inverse_layer_idx", False)
    return {
        "layers": config["n_layer"], "hidden": config["n_embd"], "heads": config["n_head"],
        "vocab": config["vocab_size"], "seq": config["n_positions"],
        "ffn": config.get("n_inner") or 0, "norm_eps": config.get("layer_norm_epsilon", 1e-5),
    }  # fmt: skip


def _neox_fits(spec: ModelSpec) -> str | None:
    wanted = {"block": "parallel", "norm": "layernorm", "activation": "gelu", "position": "rotary"}
    plain = {"bias": True, "window": 0, "kv_heads": spec.heads}
    return _unlike(spec, **wanted, **plain, head_dim=spec.hidden // spec.heads)


def _neox_links(spec: ModelSpec) -> list[Link]:
    links = [Link("gpt_neox.embed_in.weight", ("embed.weight",))]
    for i in range(spec.layers):
        ours, theirs = f"layers.{i}.both", f"gpt_neox.layers.{i}"
        for kind in ("weight", "bias"):
            qkv = tuple(f"{ours}.{x}.{kind}" for x in "qkv")
            links += [
                Link(f"{theirs}.input_layernorm.{kind}", (f"{ours}.norm.{kind}",)),
                Link(f"{theirs}.post_attention_layernorm.{kind}", (f"{ours}.norm.{kind}",)),
                Link(f"{theirs}.attention.query_key_value.{kind}", qkv, "by_head"),
                Link(f"{theirs}.attention.dense.{kind}", (f"{ours}.o.{kind}",)),
                Link(f"{theirs}.mlp.dense_h_to_4h.{kind}", (f"{ours}.up.{kind}",)),
                Link(f"{theirs}.mlp.dense_4h_to_h.{kind}", (f"{ours}.down.{kind}",)),
            ]
    for kind in ("weight", "bias"):
        links.append(Link(f"gpt_neox.final_layer_norm.{kind}", (f"final_norm.{kind}",)))
    if not spec.tied:
        links.append(Link("embed_out.weight", ("head.weight",)))
    return links


def _neox_config(spec: ModelSpec) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": spec.rope_theta, "partial_rotary_factor": 1.0}
    return {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
        "use_parallel_residual": True, "hidden_act": "gelu_new", "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn, "vocab_size": spec.vocab, "rotary_pct": 1.0,
        "num_hidden_layers": spec.layers, "num_attention_heads": spec.heads,
        "max_position_embeddings": spec.seq, "layer_norm_eps": spec.norm_eps,
        "rotary_emb_base": spec.rope_theta, "rope_theta": spec.rope_theta, "rope_parameters": rope,
        "attention_bias": True, "tie_word_embeddings": spec.tied,
    }  # fmt: skip


def _neox_spec(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise _unread("rope_parameters", rope)
    _refuse(config, "hidden_act", "gelu_new", "gelu_pytorch_tanh")
    _refuse(config, "use_parallel_residual", True)
    share = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    if share != 1.0:
        raise _unread("rotary_pct", share)
    theta = rope.get("rope_theta", config.get("rotary_emb_base", 10000.0))
    return {
        "layers": config["num_hidden_layers"], "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"], "vocab": config["vocab_size"],
        "seq": config["max_position_embeddings"], "ffn": config["intermediate_size"],
        "block": "parallel", "position": "rotary", "rope_theta": float(theta),
        "norm_eps": config.get("layer_norm_eps", 1e-5),
        "tied": bool(config.get("tie_word_embeddings")),
    }  # fmt: skip


def _refuse(config: dict[str, Any], key: str, *allowed: object) -> None:
    if config.get(key, allowed[0]) not in allowed:
        raise _unread(key, config.get(key))


def _unread(key: str, value: object) -> CheckpointError:
    return CheckpointError(
        f"config.json: {key} = {str(value)[:60]} is not supported",
        remedy="convert a plain Llama, GPT-2 or GPT-NeoX model",
    )


FAMILIES = (
    Family("llama", _llama_fits, _llama_links, _llama_config, _llama_spec),
    Family("gpt2", _gpt2_fits, _gpt2_links, _gpt2_config, _gpt2_spec),
    Family("gpt_neox", _neox_fits, _neox_links, _neox_config, _neox_spec),
)
