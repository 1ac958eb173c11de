import msgspec
import pytest

from engine.errors import RecipeError
from engine.plan.profiles import fitted
from engine.plan.runs import case_of_run, on_cores, step_seconds, this_machine, with_host
from engine.spec.cluster import HostSpec
from engine.spec.layout import ParallelLayout
from engine.spec.load import dump_recipe
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, Recipe
from tests.engine.plan.case import job, replace


def folder_of(tmp_path, seconds, **changes):
    recipe = Recipe(
        name="x", model=ModelSpec(layers=4, hidden=64, heads=4, vocab=256, seq=32),
        batch=BatchSpec(global_batch=8), layout=ParallelLayout(tp=2, pp=2, dp=2), **changes,
    )  # fmt: skip
    (tmp_path / "recipe.toml").write_text(dump_recipe(recipe))
    lines = [msgspec.json.encode({"step": i, "step_s": s}) for i, s in enumerate(seconds)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path


def test_a_run_is_a_case_on_this_machine_s_cores(tmp_path):
    case = case_of_run(folder_of(tmp_path, [9, 9, 1.0, 1.0, 1.2, 5.0, 1.0]), fitted())
    assert case.job.cluster.cores >= 1
    assert case.layouts[0].world_size == 8
    assert case.measured_s == pytest.approx(1.0)  # neither the first steps nor the disturbed one


def test_a_given_cluster_comes_before_the_recipe_s(tmp_path):
    mine = this_machine(8, cores=2)
    folder = folder_of(tmp_path, [1.0] * 5, cluster=this_machine(8, cores=4))
    assert case_of_run(folder, fitted()).job.cluster.cores == 4
    assert case_of_run(folder, fitted(), mine).job.cluster.cores == 2


def test_too_few_steps_say_nothing(tmp_path):
    assert case_of_run(folder_of(tmp_path, [1.0, 1.0]), fitted()) is None


def test_a_broken_metrics_file_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(RecipeError):
        step_seconds(tmp_path / "metrics.jsonl")


def test_measured_overheads_replace_those_of_the_system():
    one = job()
    assert with_host(one) == one
    host = HostSpec(step_s=0.5, slope=1.2, launch_s=1e-4, collective_s=2e-4, log_error=0.3)
    measured = with_host(replace(one, cluster=replace(one.cluster, host=host)))
    assert (measured.profile.intercept_s, measured.profile.slope) == (0.5, 1.2)
    assert (measured.physics.launch_s, measured.physics.collective_host_s) == (1e-4, 2e-4)
    assert measured.profile.log_error == 0.3


def test_ranks_that_are_processes_know_no_tiles():
    physics = on_cores(fitted().physics)
    assert physics.wave_share == 0
    assert physics.half_intra_bytes == 1
