import json
import re
from pathlib import Path

import pytest

from engine.errors import LayoutError
from engine.plan.emit import FORMATS, emit, layout_json
from engine.plan.setup import PlanLayout
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


def test_precision_is_written_as_planned_or_refused():
    half = replace(JOB, precision="fp16")
    assert "--fp16" in emit("megatron", half, LAYOUT)
    single = emit("megatron", replace(JOB, precision="fp32"), LAYOUT)
    assert not {"--bf16", "--fp16"} & set(single.split())
    single = emit("torchtitan", replace(JOB, precision="fp32"), LAYOUT)
    assert 'mixed_precision_param = "float32"' in single
    for kind in FORMATS:
        with pytest.raises(LayoutError, match="precision fp8"):
            emit(kind, replace(JOB, precision="fp8"), LAYOUT)
    with pytest.raises(LayoutError, match="precision fp16: `msctl train` trains fp64, fp32, bf16"):
        emit("recipe", half, LAYOUT)


def test_steps_are_of_the_tokens_given():
    tokens = 100 * JOB.global_batch * JOB.model.seq
    assert "--train-iters 100 " in emit("megatron", JOB, LAYOUT, tokens=tokens)
    assert "steps = 100\n" in emit("torchtitan", JOB, LAYOUT, tokens=tokens)
    assert "steps = 100\n" in emit("recipe", JOB, LAYOUT, tokens=tokens)
    assert f"steps = {round(300e9 / (64 * 2048))}\n" in emit("recipe", JOB, LAYOUT)


def test_megatron_has_no_zero_3():
    with pytest.raises(LayoutError, match="ZeRO-3"):
        emit("megatron", JOB, replace(LAYOUT, zero=3))


def test_what_the_engine_cannot_run_is_refused():
    with pytest.raises(LayoutError, match="cp = 2"):
        emit("recipe", JOB, PlanLayout(cp=2))
    with pytest.raises(LayoutError) as caught:
        emit("pdf", JOB, LAYOUT)
    assert all(kind in caught.value.remedy for kind in FORMATS)
    assert json.loads(layout_json(LAYOUT))["tp"] == 8
