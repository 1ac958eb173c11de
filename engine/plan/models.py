"""Where a model to plan comes from: a preset, a Hugging Face config.json, or a recipe.

A config.json is foreign input: its size is bounded, every value is checked, and what it leaves
open is returned as an assumption in words. Nothing is downloaded.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.errors import RecipeError
from engine.plan.setup import Experts
from engine.spec.load import load_recipe
from engine.spec.model import ModelSpec
from engine.spec.presets import MODELS, model_preset
from engine.spec.recipe import Recipe

_LARGEST_CONFIG = 4 * 2**20
_LONGEST = 2**24
_SEQ = 4096

Config = dict[str, object]


class Source(NamedTuple):
    """A model, what fills its MLPs if not one dense pair, and what had to be assumed."""

    model: ModelSpec
    experts: Experts | None
    assumptions: tuple[str, ...]
    recipe: Recipe | None = None


def load_model(name: str) -> Source:
    """A preset's name, a config.json (or its folder), or a recipe's path; RecipeError otherwise."""
    if name in MODELS:
        return Source(model_preset(name), None, ())
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise RecipeError(
            f"--model {name}: neither a preset nor a file",
            remedy=f"use one of {', '.join(MODELS)}, a config.json, or a recipe",
        )
    if path.suffix == ".toml":
        recipe = load_recipe(path)
        return Source(recipe.model, None, (), recipe)
    data = _read(path)
    try:
        config = msgspec.json.decode(data, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise RecipeError(
            f"{path}: not a JSON object: {error}", remedy="give the config.json of a model"
        ) from None
    model, experts, notes = from_config(config, where=str(path))
    return Source(model, experts, notes)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_CONFIG + 1)
    except OSError as error:
        raise RecipeError(
            f"{path}: cannot be read: {error.strerror}", remedy="give a file that can be read"
        ) from None
    if len(data) > _LARGEST_CONFIG:
        raise RecipeError(
            f"{path}: larger than {_LARGEST_CONFIG} bytes, so not a model description",
            remedy="give the config.json of a model, not its weights",
        )
    return data


def from_config(config: Config, *, where: str) -> tuple[ModelSpec, Experts | None, tuple[str, ...]]:
    """A Hugging Face configuration as a model; `where` names the file in errors."""
    if isinstance(config.get("text_config"), dict):  # multi-modal: plan the language model
        config = msgspec.convert(config["text_config"], dict[str, object])
    reader = _Reader(config, where)
    kind = str(config.get("model_type", "llama"))
    hidden = reader.need("hidden_size", "n_embd", "n_embed", "d_model")
    layers = reader.need("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = reader.need("num_attention_heads", "n_head", "n_heads")
    old = kind in ("gpt2", "gpt_neo", "gpt_neox", "bloom", "opt", "falcon", "mpt", "gpt_bigcode")
    ffn = reader.take("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    seq = reader.take("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    notes = []
    if not seq or seq > 32768:
        notes.append(f"sequence of {_SEQ} tokens ({where} allows {seq or 'an unstated length'})")
        seq = _SEQ
    parallel = bool(config.get("parallel_attn", False)) or (
        kind == "gpt_neox" and bool(config.get("use_parallel_residual", True))
    )
    window = reader.take("sliding_window") if config.get("use_sliding_window", True) else 0
    learned = kind in ("gpt2", "gpt_neo", "opt", "gpt_bigcode")
    multi_query = kind == "falcon" and bool(config.get("multi_query", False))
    fields: dict[str, object] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocab": reader.need("vocab_size"),
        "seq": seq,
        "kv_heads": reader.take("num_key_value_heads", "num_kv_heads") or (1 if multi_query else 0),
        "head_dim": reader.take("head_dim"),
        "ffn": ffn or (4 * hidden if old else 0),
        "block": "parallel" if parallel else "serial",
        "norm": "layernorm" if old else "rmsnorm",
        "activation": "gelu" if old else "swiglu",
        "position": "learned" if learned else "none" if kind in ("bloom", "mpt") else "rotary",
        "window": window if 0 < window < seq else 0,
        "bias": old,
        "tied": bool(config.get("tie_word_embeddings", old)),
    }
    try:
        model = msgspec.convert(fields, ModelSpec)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{where}: {error}", remedy="correct that key of the file") from None
    return model, _experts(reader, model), tuple(notes)


def _experts(reader: "_Reader", model: ModelSpec) -> Experts | None:
    """The mixture-of-experts keys of Mixtral, Qwen and DeepSeek configurations."""
    count = reader.take("num_local_experts", "num_experts", "n_routed_experts")
    if count < 2:
        return None
    ffn = reader.take("moe_intermediate_size") or model.ffn
    shared = reader.take("shared_expert_intermediate_size") or ffn * reader.take("n_shared_experts")
    return Experts(
        count=count,
        top_k=reader.take("num_experts_per_tok", "moe_top_k") or 1,
        ffn=ffn,
        shared_ffn=shared,
        dense_layers=min(model.layers, reader.take("first_k_dense_replace")),
    )


class _Reader:
    """Checked access to whole numbers of a configuration under any of their names."""

    def __init__(self, config: Config, where: str) -> None:
        self._config = config
        self._where = where

    def take(self, *names: str) -> int:
        """The first name that has a number, 0 if none has."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LONGEST:
                raise RecipeError(
                    f"{self._where}: {name} = {value!r} is not a whole number up to {_LONGEST}",
                    remedy=f"correct {name} in that file",
                )
            return value
        return 0

    def need(self, *names: str) -> int:
        """The same, but there must be one."""
        value = self.take(*names)
        if value < 1:
            raise RecipeError(
                f"{self._where}: has none of {', '.join(names)}",
                remedy=f"add {names[0]}, or give a preset with --model",
            )
        return value
