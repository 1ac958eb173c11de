"""Rule 6: every shipped recipe loads, resolves to itself, has a safe schedule, and plans."""

import pytest

from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.verify import verify
from engine.spec.load import dump_recipe, load_recipe, recipe_of
from engine.spec.toml import parse_toml
from tests.house.source import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_a_recipe_resolves_to_itself(path):
    recipe = load_recipe(path)
    assert recipe_of(parse_toml(dump_recipe(recipe), "dump"), origin="dump") == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_a_recipes_schedule_is_safe(path):
    recipe = load_recipe(path)
    layout = recipe.layout
    microbatches = recipe.batch.microbatches(layout)
    if layout.pp * layout.vpp * microbatches > 5000:
        microbatches = layout.pp  # one round has every kind of boundary that many have
    verify(add_comm(build(recipe.schedule.kind, layout.pp, layout.vpp, microbatches)))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_a_recipe_plans(path, msctl):
    ended = msctl("plan", "--model", str(path), "--top", "1", "--json")
    assert ended.code in (0, 4), ended.err


def test_the_recipes_name_the_schema_for_editors():
    for path in RECIPES:
        assert path.read_text(encoding="utf-8").startswith("#:schema ./recipe.schema.json\n")
