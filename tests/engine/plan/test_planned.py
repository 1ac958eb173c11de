"""A plan as a recipe: it loads, keeps what was not planned, and starts the right nodes."""

import subprocess

import msgspec
import pytest

from engine.errors import LayoutError, RecipeError
from engine.job.slurm import script
from engine.plan.planned import FILE, obstacle, recipe, sbatch
from engine.plan.setup import PlanLayout
from engine.spec.load import load_cluster, load_recipe
from engine.spec.presets import model_preset
from tests.engine.plan.case import job, replace

LAYOUT = PlanLayout(tp=8, pp=8, vpp=6, dp=2, recompute="full")
JOB = job("175b", gpus=128, batch=64)
BASE = """
name = "mine"
seed = 7
[model]
preset = "small"
[batch]
global_batch = 8
[schedule]
run_ahead = 2
[overlap]
pp_ahead = 2
[optimizer]
lr = 1e-3
warmup_steps = 5
[data]
source = ["python-stdlib:"]
tokenizer = "bpe"
[train]
steps = 50
device = "cpu"
[checkpoint]
every = 10
[job]
restarts = 3
"""


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(BASE)
    return load_recipe(path)


@pytest.fixture
def loaded(tmp_path):
    def load(text):
        path = tmp_path / FILE
        path.write_text(text)
        return load_recipe(path)

    return load


def test_the_recipe_loads_as_what_was_planned(loaded):
    made = loaded(recipe(JOB, LAYOUT, 10))
    assert made.layout == LAYOUT.parallel()
    assert made.model == model_preset("175b")
    assert made.batch.global_batch == 64
    assert (made.train.steps, made.train.device, made.train.precision) == (10, "cuda", "bf16")


def test_nodes_of_a_cluster_are_nodes_of_the_job_and_join_through_redis(loaded, tmp_path):
    made = loaded(recipe(JOB, LAYOUT, 10))
    assert (made.job.nodes, made.train.store) == (16, "redis")
    text = script(made, tmp_path)
    assert "#SBATCH --array=0-15\n" in text
    assert "#SBATCH --gres=gpu:8\n" in text
    alone = loaded(recipe(job("13b", gpus=8, batch=64), PlanLayout(tp=8), 10))
    assert (alone.job.nodes, alone.train.store) == (1, "tcp")


def test_the_script_runs_the_driver_that_asks_for_the_nodes():
    text = sbatch(JOB, LAYOUT, 10)
    assert f'exec msctl train {FILE} --on slurm "$@"\n' in text
    assert "16 nodes of 8 devices" in text
    assert "--gpus" not in text, "the driver asks for them"
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    alone = sbatch(job("13b", gpus=8, batch=64), PlanLayout(tp=8), 10)
    assert "--on slurm --set train.store=redis" in alone


def test_a_recipe_keeps_all_that_was_not_planned(base, loaded):
    one = replace(job(base.model, gpus=4, batch=8), precision="fp32")
    layout = PlanLayout(pp=2, dp=2, zero=2, micro_batch=2)
    made = loaded(recipe(one, layout, base.train.steps, base))
    assert made.layout == layout.parallel()
    assert made.batch.micro_batch == 2
    for section in ("name", "seed", "model", "optimizer", "data", "train", "checkpoint", "monitor",
                    "job", "cluster", "schedule"):  # fmt: skip
        assert getattr(made, section) == getattr(base, section), section
    assert made.overlap == msgspec.structs.replace(base.overlap, tp=False)


def test_an_order_that_has_no_run_ahead_forgets_it(base, loaded):
    one = replace(job(base.model, gpus=2, batch=8), precision="fp32")
    made = loaded(recipe(one, PlanLayout(pp=2, schedule="gpipe"), 50, base))
    assert (made.schedule.kind, made.schedule.run_ahead) == ("gpipe", 0)


def test_nodes_that_a_recipe_names_stay_if_they_hold_the_layout(base, loaded):
    own = replace(base, job=replace(base.job, nodes=4), layout=PlanLayout(dp=8).parallel())
    one = replace(job(base.model, gpus=8, batch=8), precision="fp32")
    assert loaded(recipe(one, PlanLayout(dp=8), 50, own)).job.nodes == 4
    wide = replace(job(base.model, gpus=16, batch=16), precision="fp32")
    assert loaded(recipe(wide, PlanLayout(dp=16), 50, own)).job.nodes == 2


def test_more_nodes_get_longer_to_start(base, loaded):
    few, many = (
        loaded(recipe(job("175b", gpus=gpus, batch=1536), replace(LAYOUT, dp=gpus // 64), 9, base))
        for gpus in (128, 12288)
    )
    assert (few.job.nodes, few.job.start_s) == (16, 127.5)
    assert (many.job.nodes, many.job.start_s) == (1536, 887.5)


def test_what_a_recipe_asks_of_replicas_and_halves_goes_where_they_are_missing(base, loaded):
    wish = msgspec.structs.replace(
        base,
        job=msgspec.structs.replace(base.job, sdc_every=50),
        overlap=msgspec.structs.replace(base.overlap, tp_halves=True),
    )
    two = loaded(recipe(JOB, replace(LAYOUT, micro_batch=2, recompute="none"), 9, wish))
    assert (two.job.sdc_every, two.overlap.tp_halves) == (50, True)
    one = loaded(recipe(JOB, replace(LAYOUT, dp=1), 9, wish))
    assert (one.job.sdc_every, one.overlap.tp_halves) == (0, False)


def test_ranks_that_share_cores_train_on_the_cpu(root, loaded):
    laptop = load_cluster(root / "recipes" / "clusters" / "laptop.toml")
    one = replace(job("tiny", gpus=2, batch=8), cluster=laptop, precision="fp32")
    assert loaded(recipe(one, PlanLayout(dp=2), 5)).train.device == "cpu"


def test_a_budget_that_the_recipe_s_own_schedule_does_not_fit_is_refused(base):
    one = replace(job(base.model, gpus=1, batch=8), precision="fp32")
    with pytest.raises(RecipeError, match=r"warmup_steps = 5 is not below train\.steps = 4"):
        recipe(one, PlanLayout(), 4, base)


@pytest.mark.parametrize(
    ("axes", "says"),
    [({"zero": 3, "dp": 2}, "ZeRO-3"), ({"cp": 2}, "cp = 2"), ({"ep": 2, "dp": 2}, "ep = 2")],
)
def test_what_the_engine_does_not_have_is_named(axes, says):
    assert says in obstacle(JOB, PlanLayout(**axes))
    with pytest.raises(LayoutError, match=says):
        recipe(JOB, PlanLayout(**axes), 1)


def test_what_the_engine_has_but_a_recipe_forbids_is_named():
    odd = job(replace(model_preset("small"), vocab=50257), gpus=2, batch=8)
    assert "does not divide model.vocab = 50257" in obstacle(odd, PlanLayout(tp=2))
    assert obstacle(odd, PlanLayout(dp=2)) == ""
    with pytest.raises(RecipeError, match="50257"):
        sbatch(odd, PlanLayout(tp=2), 1)


def test_overlap_that_would_hide_nothing_is_left_out(loaded):
    one = job("13b", gpus=8, batch=64)
    made = loaded(recipe(one, PlanLayout(tp=8, sequence_parallel=False), 10))
    assert not made.overlap.tp
    assert loaded(recipe(one, PlanLayout(tp=8), 10)).overlap.tp_pieces == 4
