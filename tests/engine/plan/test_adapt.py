from pathlib import Path

import msgspec
import pytest

from engine.errors import RecipeError
from engine.plan.adapt import _predict, _scaled, adapt
from engine.plan.profiles import fitted
from engine.plan.runs import case_of_run, this_machine
from engine.spec.layout import ParallelLayout
from engine.spec.load import dump_recipe, load_cluster
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, Recipe

TABLE = Path(__file__).with_name("runs.csv")
SHAPES = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (2, 2, 2))
TRUE = (0.5, 0.8, 0.7, 1.3, 0.02, 30e-6, 5e-4)


def run(folder: Path, tp: int, pp: int, dp: int, step_s: float) -> Path:
    folder.mkdir()
    recipe = Recipe(
        name="x", model=ModelSpec(layers=4, hidden=256, heads=4, vocab=512, seq=128),
        batch=BatchSpec(global_batch=8), layout=ParallelLayout(tp=tp, pp=pp, dp=dp),
        cluster=this_machine(8, cores=2),
    )  # fmt: skip
    (folder / "recipe.toml").write_text(dump_recipe(recipe))
    lines = [msgspec.json.encode({"step": i, "step_s": s}).decode()
             for i, s in enumerate([9.0, 9.0, step_s, step_s, step_s])]  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def runs(tmp_path: Path) -> Path:
    """Runs of a machine whose constants are TRUE."""
    for index, shape in enumerate(SHAPES):
        folder = run(tmp_path / f"r{index}", *shape, 1.0)
        case = case_of_run(folder, fitted())
        seconds = _predict(_scaled(case, TRUE), None)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        run(tmp_path / f"r{index}", *shape, seconds)
    return tmp_path


@pytest.mark.slow
def test_runs_of_a_slower_machine_are_learnt(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    result = adapt(runs(folder), tmp_path / "c.toml")
    assert result.rows == len(SHAPES)
    assert result.error_after < 0.05 < result.error_before
    assert result.error_left_out < 0.12
    text = (tmp_path / "c.toml").read_text()
    assert "mean error of runs left out" in text.splitlines()[0]
    assert load_cluster(tmp_path / "c.toml") == result.cluster


@pytest.mark.slow
def test_a_table_can_be_adapted_to(tmp_path):
    rows = TABLE.read_text().splitlines()
    path = tmp_path / "own.csv"
    path.write_text("\n".join(r for r in rows if r.startswith(("id,", "ms-mlm"))) + "\n")
    assert adapt(path).error_after < 0.04


def test_one_run_is_too_few(tmp_path):
    run(tmp_path / "r", 1, 1, 1, 1.0)
    with pytest.raises(RecipeError, match="1 usable"):
        adapt(tmp_path / "r")
    with pytest.raises(RecipeError, match="neither"):
        adapt(tmp_path / "absent")


def test_a_torn_metrics_file_is_named(tmp_path):
    folder = run(tmp_path / "r", 1, 1, 1, 1.0)
    (folder / "metrics.jsonl").write_text('{"step": 1, "step_s"')
    with pytest.raises(RecipeError) as caught:
        case_of_run(folder, fitted())
    assert "metrics.jsonl" in caught.value.what


def test_ranks_share_the_cores():
    machine = this_machine(8, cores=2)
    assert (machine.cores, machine.gpus_per_node) == (2, 8)
    assert this_machine(1, cores=2).cores == 1
