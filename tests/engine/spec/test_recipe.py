from engine.spec.layout import ParallelLayout
from engine.spec.presets import model_preset
from engine.spec.recipe import BatchSpec, Recipe


def test_a_recipe_needs_only_name_model_and_batch():
    recipe = Recipe(name="x", model=model_preset("tiny"), batch=BatchSpec(global_batch=4))
    assert recipe.layout == ParallelLayout()
    assert recipe.cluster is None


def test_microbatches_are_a_replicas_share():
    layout = ParallelLayout(tp=8, pp=8, vpp=6, dp=192)
    assert BatchSpec(global_batch=6144).microbatches(layout) == 32
    assert BatchSpec(global_batch=6144, micro_batch=2).microbatches(layout) == 16
