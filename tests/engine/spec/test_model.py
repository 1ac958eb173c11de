import pytest

from engine.spec.model import ModelSpec
from engine.spec.presets import MODELS, model_preset

PUBLISHED_PARAMETERS = {
    "175b": 174.8e9,  # paper, Table 1
    "530b": 529.8e9,
    "llama2-7b": 6_738_415_616,  # the checkpoints' own counts
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_are_the_published_ones(name):
    rel = 1e-3 if (name.endswith("0b") and name[0] == "5") or name == "175b" else 1e-9
    assert model_preset(name).params == pytest.approx(PUBLISHED_PARAMETERS[name], rel=rel)


def test_gpt2_small_has_124_million():
    gpt2 = ModelSpec(layers=12, hidden=768, heads=12, vocab=50257, seq=1024)
    assert gpt2.params == 124_439_808


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_sum_of_their_parts(name):
    model = model_preset(name)
    parts = model.embedding_params + model.head_params + model.layers * model.layer_params
    assert model.params == parts
    assert model.layer_matmul_params < model.layer_params


def test_flops_of_a_gpt_are_the_papers_formula():
    model = model_preset("175b")
    l, h, s, v = model.layers, model.hidden, model.seq, model.vocab  # noqa: E741 - as in the paper
    formula = 72 * l * h**2 * (1 + s / (6 * h) + v / (12 * l * h))
    assert model.flops_per_token("full") == pytest.approx(formula, rel=1e-12)


def test_attention_conventions_are_ordered():
    model = ModelSpec(layers=2, hidden=64, heads=4, vocab=256, seq=128, window=(32, 0))
    none, window, full = (model.flops_per_token(c) for c in ("none", "window", "full"))
    assert none < window < full
    assert model.attention_span("window") == (32 + 128) / 2


def test_derived_sizes_are_filled_in():
    gelu = ModelSpec(layers=1, hidden=96, heads=4, vocab=8, seq=8)
    assert (gelu.kv_heads, gelu.head_dim, gelu.ffn) == (4, 24, 384)
    swiglu = ModelSpec(layers=1, hidden=96, heads=4, vocab=8, seq=8, activation="swiglu")
    assert swiglu.ffn == 256
    assert (gelu.q_size, gelu.kv_size) == (96, 96)


def test_windows_repeat_over_the_layers():
    model = ModelSpec(layers=5, hidden=8, heads=1, vocab=8, seq=8, window=(4, 0))
    assert [model.window_of(i) for i in range(5)] == [4, 0, 4, 0, 4]
