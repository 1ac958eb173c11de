import json

import pytest

from engine.errors import RecipeError
from engine.plan.models import from_config, load_model

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_llama_config_has_llama_3_8b_s_parameters():
    model, experts, notes = from_config(LLAMA, where="config.json")
    assert model.params == pytest.approx(8.03e9, rel=0.001)
    assert (experts, notes) == (None, ())


def test_a_gpt2_config_has_gpt2_s_parameters():
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
              "n_positions": 1024, "vocab_size": 50257}  # fmt: skip
    model, _, _ = from_config(config, where="config.json")
    assert model.params == pytest.approx(124.4e6, rel=0.001)


def test_mixtral_has_experts_and_a_long_context_becomes_an_assumption():
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
                      "max_position_embeddings": 131072}  # fmt: skip
    model, experts, notes = from_config(config, where="config.json")
    assert (experts.count, experts.top_k, experts.ffn) == (8, 2, 14336)
    assert model.seq == 4096
    assert "131072" in notes[0]


def test_a_folder_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(tmp_path)).model.layers == 32


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1, 2]", "not a JSON object"),
        ("{", "not a JSON object"),
        ("{}", "has none of hidden_size"),
        (json.dumps(LLAMA | {"hidden_size": -1}), "hidden_size = -1"),
        (json.dumps(LLAMA | {"hidden_size": 1e9}), "hidden_size"),
        (json.dumps(LLAMA | {"num_hidden_layers": True}), "num_hidden_layers = True"),
        (json.dumps(LLAMA | {"vocab_size": 2**60}), "vocab_size"),
    ],
)
def test_hostile_files_are_refused_with_a_remedy(tmp_path, content, says):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(RecipeError) as caught:
        load_model(str(path))
    assert says in caught.value.what
    assert caught.value.remedy


def test_weights_are_not_read_as_a_config(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(RecipeError, match="larger than"):
        load_model(str(path))


def test_an_unknown_name_lists_presets():
    with pytest.raises(RecipeError) as caught:
        load_model("gpt-5")
    assert "175b" in caught.value.remedy
