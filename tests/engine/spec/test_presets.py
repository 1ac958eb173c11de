import pytest

from engine.spec.model import ModelSpec
from engine.spec.presets import CLUSTERS, DEVICES, MODELS, model_preset


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_whole_shape(name):
    model = model_preset(name)
    assert isinstance(model, ModelSpec)
    assert model.head_dim * model.heads == model.hidden
    assert model.heads % model.kv_heads == 0


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_is_named_after_its_key(name):
    cluster = CLUSTERS[name]
    assert cluster.name == name
    assert cluster.inter.bytes_per_s < cluster.intra.bytes_per_s


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_knows_the_training_precisions(name):
    peaks = DEVICES[name].peak_flops_per_s
    assert {"fp32", "fp16", "bf16", "fp64"} <= set(peaks)
    assert peaks["bf16"] >= peaks["fp32"] >= peaks["fp64"]
    assert 0 < DEVICES[name].sustained <= 1
