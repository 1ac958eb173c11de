import json
import re
from pathlib import Path

import pytest

from engine.errors import LayoutError
from engine.plan.emit import FORMATS, emit, layout_json
from engine.plan.setup import PlanLayout
from engine.spec.load import load_recipe
from engine.spec.presets import model_preset
from engine.spec.toml import parse_toml
from tests.engine.plan.case import job, replace

FIELDS = json.loads(Path(__file__).with_name("peer_fields.json").read_text())
LAYOUT = PlanLayout(tp=8, pp=8, vpp=6, dp=2, recompute="full")
JOB = job("175b", gpus=128, batch=64)

CLI_ONLY = {
    # arguments of Megatron-LM's training script that are no field of a megatron-core class
    "seq-length", "max-position-embeddings", "micro-batch-size", "global-batch-size", "train-iters",
    "position-embedding-type", "use-mcore-models", "swiglu", "use-flash-attn",
    "group-query-attention", "untie-embeddings-and-output-weights", "disable-bias-linear",
    "num-layers-per-virtual-pipeline-stage",
}  # fmt: skip


def test_the_recipe_loads_as_what_was_planned(tmp_path):
    path = tmp_path / "planned.toml"
    path.write_text(emit("recipe", JOB, LAYOUT))
    recipe = load_recipe(path)
    assert recipe.layout == LAYOUT.parallel()
    assert recipe.model == model_preset("175b")
    assert recipe.batch.global_batch == 64


def test_megatron_s_arguments_exist():
    llama = replace(job("llama3-70b", gpus=128, batch=64), profile=JOB.profile)
    known = {name for names in FIELDS["megatron"].values() for name in names}
    for one in (JOB, llama):
        text = emit("megatron", one, LAYOUT)
        for flag in re.findall(r"--([a-z0-9-]+)", text):
            assert flag in CLI_ONLY or flag.replace("-", "_") in known, flag
    assert "--tensor-model-parallel-size 8" in text
    assert "--num-query-groups 8" in text


def test_torchtitan_s_keys_exist():
    document = parse_toml(emit("torchtitan", job("llama3-8b", gpus=128, batch=64), LAYOUT), "x")
    names = {"model": "Model", "training": "Training", "parallelism": "Parallelism",
             "activation_checkpoint": "ActivationCheckpoint", "compile": "Compile"}  # fmt: skip
    assert set(document) <= set(FIELDS["torchtitan"]["JobConfig"])
    for section, keys in document.items():
        assert set(keys) <= set(FIELDS["torchtitan"][names[section]])


def test_sbatch_asks_for_the_nodes():
    text = emit("sbatch", JOB, LAYOUT)
    assert "#SBATCH --nodes=16" in text
    assert "--gpus-per-node=8" in text


def test_what_the_engine_cannot_run_is_refused():
    with pytest.raises(LayoutError, match="cp = 2"):
        emit("recipe", JOB, PlanLayout(cp=2))
    with pytest.raises(LayoutError) as caught:
        emit("pdf", JOB, LAYOUT)
    assert all(kind in caught.value.remedy for kind in FORMATS)
    assert json.loads(layout_json(LAYOUT))["tp"] == 8
