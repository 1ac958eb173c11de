from pathlib import Path

import pytest

from engine.job import ablate as ablation
from engine.job.ablate import ablate, rungs_of
from engine.spec.load import load_recipe

ROOT = Path(__file__).resolve().parents[3]
SMALL = [
    "model.layers=4", "model.hidden=32", "model.heads=2", "model.seq=32", "data.format=synthetic",
    "batch.global_batch=8", "batch.micro_batch=1", "train.threads=1",
]  # fmt: skip


def test_the_ladder_has_the_papers_order():
    names = [rung.name for rung in rungs_of(load_recipe(ROOT / "recipes" / "tiny.toml"))]
    assert names == [
        "baseline", "+ parallel block", "+ sliding window", "+ TP overlap", "+ PP overlap",
        "+ DP overlap", "+ operators", "+ LAMB, batch x3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sets", "absent"),
    [
        (["layout.tp=1"], "+ TP overlap"),
        (["layout.sequence_parallel=false", "batch.micro_batch=1"], "+ TP overlap"),
        (["layout.pp=1"], "+ PP overlap"),
        (["layout.dp=1"], "+ DP overlap"),
    ],
)
def test_a_rung_that_cannot_do_anything_is_left_out(sets, absent):
    recipe = load_recipe(ROOT / "recipes" / "tiny.toml", sets)
    assert absent not in [rung.name for rung in rungs_of(recipe)]


def test_the_recipes_own_number_of_pieces_is_kept():
    def sets(*more):
        rungs = rungs_of(load_recipe(ROOT / "recipes" / "tiny.toml", list(more)))
        return next(rung.sets for rung in rungs if rung.name == "+ TP overlap")

    assert "overlap.tp_pieces=2" in sets("overlap.tp_pieces=2")
    assert "overlap.tp_pieces=4" in sets(), "without a cluster"


@pytest.mark.parametrize(
    "wish",
    [("layout.sequence_parallel=false", "overlap.tp=false"), ("overlap.tp_halves=true",)],
)
def test_halves_hide_where_pieces_cannot_or_the_recipe_asks_for_them(wish):
    recipe = load_recipe(ROOT / "recipes" / "tiny.toml", ["batch.micro_batch=2", *wish])
    rungs = {rung.name: rung.sets for rung in rungs_of(recipe)}
    assert rungs["+ TP overlap"] == ("overlap.tp_halves=true", "overlap.tp=true")
    assert "overlap.tp_halves=false" in rungs["baseline"]


@pytest.mark.parametrize(
    "sets", [(), ("layout.sequence_parallel=false", "overlap.tp=false", "batch.micro_batch=2")]
)
def test_every_rung_is_a_recipe_that_loads(sets):
    path, so_far = ROOT / "recipes" / "tiny.toml", list(sets)
    for rung in rungs_of(load_recipe(path, so_far)):
        so_far += rung.sets
        load_recipe(path, so_far)


@pytest.mark.multi
@pytest.mark.slow
def test_a_ladder_is_climbed(tmp_path, monkeypatch):
    """Three rungs of it: the first, the one that overlaps, and the last, with its larger batch."""
    some = ("baseline", "+ PP overlap", "+ LAMB, batch x3")
    monkeypatch.setattr(
        ablation, "rungs_of", lambda recipe: [r for r in rungs_of(recipe) if r.name in some]
    )
    sets = [*SMALL, "layout.tp=1", "layout.pp=2", "layout.vpp=1", "layout.dp=1"]
    ladder = ablate(ROOT / "recipes" / "tiny.toml", sets, tmp_path, rounds=1, steps=3)
    assert [len(rung.tokens_per_s) for rung in ladder.rungs] == [1, 1, 1]
    assert all(rung.median > 0 and rung.exposed_tp_s == 0 for rung in ladder.rungs)
    assert all(rung.exposed_pp_s > 0 for rung in ladder.rungs)
