"""What `plan --emit` takes of a search: the fastest layout that the system runs, said so."""

import pytest

from engine.errors import LayoutError, RecipeError
from engine.plan.emitted import make_emitted
from engine.plan.request import Request, make_exhaustive, make_plan
from engine.spec.load import load_recipe


@pytest.fixture
def loaded(tmp_path):
    def load(text):
        path = tmp_path / "planned.toml"
        path.write_text(text)
        return load_recipe(path)

    return load


def test_the_best_row_is_written_and_what_was_assumed_is_said(loaded):
    request = Request(model="13b", gpus=64)
    found = make_emitted(request, "recipe")
    best = make_plan(request).candidates[0].layout
    assert found.layout == best
    assert loaded(found.text).layout == best.parallel()
    assert found.passed_over == ""
    text = " ".join(found.assumptions)
    assert "a100-nvl8" in text
    assert "300 G tokens" in text
    assert "synthetic data" in text


def test_the_complete_search_gives_the_best_that_runs_and_names_the_faster_one(loaded):
    sets = ("layout.tp=1,2", "layout.pp=1", "batch.micro_batch=3,4")
    request = Request(model="13b", gpus=64, top=2, sets=sets)
    assert {c.layout.zero for c in make_exhaustive(request).candidates} == {3}
    found = make_emitted(request, "recipe", exhaustive=True)
    assert loaded(found.text).layout == found.layout.parallel()
    assert "ZeRO-3" in found.passed_over
    assert "`msctl train` does not run it" in found.passed_over


def test_what_is_held_and_cannot_run_is_an_error():
    with pytest.raises(LayoutError, match="ZeRO-3"):
        make_emitted(Request(model="13b", gpus=64, sets=("layout.zero=3",)), "recipe")
    with pytest.raises(LayoutError, match="precision fp8"):
        make_emitted(Request(model="13b", gpus=64, cluster="h100-nvl8", precision="fp8"), "recipe")
    with pytest.raises(LayoutError, match="no layout fits"):
        make_emitted(Request(model="175b", gpus=8), "recipe")


def test_tensor_parallelism_that_the_vocabulary_forbids_is_passed_over(loaded):
    sets = ("model.vocab=50257",)
    found = make_emitted(Request(model="13b", gpus=64, top=1, sets=sets), "recipe")
    assert loaded(found.text).layout.tp == 1
    assert "50257" in found.passed_over
    held = Request(model="13b", gpus=64, top=1, sets=(*sets, "layout.tp=2"))
    with pytest.raises(RecipeError, match="50257"):
        make_emitted(held, "recipe")


def test_tokens_count_and_a_recipe_s_steps_stay_without_them(tmp_path, loaded):
    path = tmp_path / "base.toml"
    path.write_text('name = "mine"\n[model]\npreset = "small"\n[batch]\nglobal_batch = 8\n'
                    '[data]\nformat = "synthetic"\n[train]\nsteps = 50\n')  # fmt: skip
    request = Request(model=str(path), gpus=1)
    kept = make_emitted(request, "recipe")
    assert (loaded(kept.text).train.steps, loaded(kept.text).name) == (50, "mine")
    assert loaded(kept.text).cluster is None, "nobody said what it runs on"
    more = Request(model=str(path), gpus=1, tokens=1e6, cluster="h100-nvl8")
    made = loaded(make_emitted(more, "recipe").text)
    assert made.train.steps == round(1e6 / (8 * 1024))
    assert made.cluster.name == "h100-nvl8"
    assert "--train-iters 50 " in make_emitted(request, "megatron").text


def test_megatron_gets_no_order_that_it_does_not_have():
    found = make_emitted(Request(model="175b", gpus=1024, top=1), "megatron")
    assert found.layout.schedule == "auto"
    assert "zero-bubble" in found.passed_over
