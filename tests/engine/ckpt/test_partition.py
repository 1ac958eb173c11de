import time
from math import prod

import pytest
import torch

from engine.ckpt.geometry import coverage
from engine.ckpt.manifest import CheckpointMeta, Manifest, SlotEntry, TensorEntry
from engine.ckpt.partition import box_of, rank_pieces, shape_of, split_dim
from engine.ckpt.reshard import plan_reshard
from engine.model.parameter import info_of
from engine.model.transformer import whole_model
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from tests.engine.ckpt.test_hf_export import IDS, SPECS


def manifest_of(shapes, slots=("param",)):
    tensors = {
        name: TensorEntry(
            shape=shape,
            slots={s: SlotEntry(dtype="F32", shards=()) for s in slots},
        )
        for name, shape in shapes.items()
    }
    return Manifest(created_s=0.0, world=1, meta=CheckpointMeta(step=1), files=(), tensors=tensors)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_names_tell_shape_and_cut_as_the_model_does(spec):
    for parameter in whole_model(spec, seed=1, dtype=torch.float32).parameters():
        info = info_of(parameter)
        assert shape_of(spec, info.name) == info.shape
        assert split_dim(info.name) == info.split, info.name
        layout = ParallelLayout(tp=2)
        assert box_of(info.name, info.shape, layout, 1) == info.box(1, 2)


@pytest.mark.parametrize("layout", [
    ParallelLayout(tp=t, pp=p, vpp=v, dp=d)
    for t, p, v, d in [(1, 1, 1, 1), (2, 1, 1, 3), (4, 2, 1, 1), (2, 2, 2, 5), (1, 4, 1, 7)]
])  # fmt: skip
def test_every_element_is_cut_to_exactly_one_rank(layout):
    names = ["embed.weight", "final_norm.weight"]
    for i in range(4):
        names += [f"layers.{i}.attn.{x}.weight" for x in "qkvo"] + [f"layers.{i}.attn.norm.bias"]
    spec = ModelSpec(layers=4, hidden=8, heads=4, vocab=12, seq=4)
    shapes = {name: shape_of(spec, name) for name in names}
    held = {name: [] for name in names}
    sizes = []
    for _, pieces in rank_pieces(manifest_of(shapes), layout):
        sizes.append(sum(piece.region.size for piece in pieces))
        for piece in pieces:
            held[piece.name].append(piece.region)
    assert all(coverage(shapes[name], held[name]) is None for name in names)
    per_stage = layout.tp * layout.dp
    first = sizes[:per_stage]
    assert max(first) - min(first) <= len(names), "replicas share a stage evenly"


def test_a_530b_shaped_plan_takes_seconds():
    spec = ModelSpec(layers=104, hidden=20480, heads=128, vocab=51200, seq=2048)
    names = ["embed.weight", "position.weight", "final_norm.weight", "final_norm.bias"]
    for i in range(spec.layers):
        for kind in ("weight", "bias"):
            names += [f"layers.{i}.attn.{x}.{kind}" for x in ("norm", *"qkvo")]
            names += [f"layers.{i}.mlp.{x}.{kind}" for x in ("norm", "up", "down")]
    shapes = {name: shape_of(spec, name) for name in names}
    manifest = manifest_of(shapes, ("param", "exp_avg", "exp_avg_sq"))
    start = time.process_time()
    plan = plan_reshard(manifest, ParallelLayout(tp=8, pp=8, vpp=1, dp=64))
    assert time.process_time() - start < 5
    assert plan.files == 4096
    assert plan.bytes == 12 * sum(prod(shape) for shape in shapes.values())
