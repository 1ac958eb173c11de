import msgspec

from engine.spec.check import check
from engine.spec.load import load_recipe
from tests.engine.spec.samples import changed


def test_the_shipped_recipes_contradict_nothing(root):
    for path in sorted((root / "recipes").glob("*.toml")):
        assert check(load_recipe(path)) == []


def test_all_contradictions_are_returned_at_once():
    problems = check(
        changed(layout={"tp": 3}, batch={"global_batch": 5}, optimizer={"min_lr": 1.0})
    )
    assert {p.keys[0] for p in problems} == {"layout.tp", "batch.global_batch", "optimizer.min_lr"}
    assert all(p.remedy for p in problems)


def test_rules_on_wrong_keys_are_not_asked():
    recipe = changed(layout={"tp": 3}, batch={"global_batch": 5})
    assert [p.keys[0] for p in check(recipe, wrong=frozenset({"layout.tp"}))] == [
        "batch.global_batch"
    ]
    assert check(recipe, wrong=frozenset({"layout", "batch"})) == []


def test_defaults_are_marked():
    recipe = changed(optimizer={"lr": 1e-6})
    (problem,) = check(recipe, given=frozenset({"optimizer.lr"}))
    assert problem.what == "optimizer.min_lr = 3e-05 (default) is above optimizer.lr = 1e-06"
    assert msgspec.structs.replace(problem, where="f:1").shown.startswith("f:1: ")
