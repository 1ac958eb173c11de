"""The walk through a schedule on one rank: chunks hand on locally, in any order."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.device import CpuDevice
from engine.events.reader import read_events
from engine.events.writer import EventWriter
from engine.schedule.action import Action, Kind
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, Recipe, ScheduleSpec, TrainSpec
from engine.train.build import Engine, build_engine
from tests.engine.parallel.alone import batch, chunk_of, mesh_of
from tests.engine.parallel.twins import SHAPES

MICRO_BATCHES = 4
TOLERANCE = 1e-12
KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("zero-bubble", 1),
         ("zb-v", 2)]  # fmt: skip


def recipe_of(kind: str, vpp: int, shape: str = "gpt") -> Recipe:
    model = ModelSpec(layers=4, hidden=16, heads=4, vocab=32, seq=8, ffn=24, **SHAPES[shape])
    return Recipe(
        name="p", seed=3, model=model, layout=ParallelLayout(vpp=vpp),
        batch=BatchSpec(global_batch=2 * MICRO_BATCHES, micro_batch=2),
        schedule=ScheduleSpec(kind=kind), train=TrainSpec(precision="fp64"),
    )  # fmt: skip


def engine_of(recipe: Recipe, events: EventWriter | None = None) -> Engine:
    events = events or EventWriter(None, 0)
    return build_engine(recipe, mesh_of(recipe.layout), CpuDevice(), events)


def gradients(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    for unit in engine.all_units():
        for weight in unit.shard.flat.weights:
            yield weight.info.name, weight.grad


@pytest.mark.parametrize(("kind", "vpp"), KINDS, ids=str)
@pytest.mark.parametrize("shape", ["gpt", "llama"])
def test_any_schedule_of_one_stage_computes_the_same_loss_and_gradients(kind, vpp, shape):
    recipe = recipe_of(kind, vpp, shape)
    engine = engine_of(recipe)
    micro = [batch(recipe.model, step=m) for m in range(MICRO_BATCHES)]
    reduced = []
    loss = engine.train.run(micro.__getitem__, scale=0.5, on_reduce=reduced.append)
    whole = chunk_of(recipe.model)
    expected = sum(whole.module(None, m) for m in micro)
    (expected * 0.5).backward()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=TOLERANCE)
    wanted = {w.info.name: w.grad for w in whole.flat.weights}
    found = dict(gradients(engine))
    assert set(found) == set(wanted)
    for name, gradient in found.items():
        assert float((gradient - wanted[name]).abs().max()) < TOLERANCE, name
    assert sorted(reduced) == list(range(vpp)), "each chunk's gradients are complete once"


@pytest.mark.parametrize(("kind", "vpp"), KINDS, ids=str)
def test_a_step_leaves_no_tensor_and_no_graph_behind(kind, vpp):
    recipe = recipe_of(kind, vpp)
    engine = engine_of(recipe)
    micro = [batch(recipe.model, step=m) for m in range(MICRO_BATCHES)]
    pipeline = engine.train
    pipeline.run(micro.__getitem__, scale=1.0, on_reduce=lambda chunk: None)
    kept = (
        pipeline._inputs, pipeline._outputs, pipeline._received, pipeline._to_send,
        pipeline._local, pipeline._owed,
    )  # fmt: skip
    assert [len(k) for k in kept] == [0] * len(kept)
    assert len(pipeline._outbox) == 0
    for unit in engine.all_units():
        assert not unit.shard.flat.grad.requires_grad, "the buffer holds on to a graph"


@pytest.mark.parametrize(("kind", "vpp"), KINDS, ids=str)
def test_evaluation_gives_the_loss_and_leaves_gradients_alone(kind, vpp):
    recipe = recipe_of(kind, vpp)
    engine = engine_of(recipe)
    micro = [batch(recipe.model, step=m) for m in range(MICRO_BATCHES)]
    with torch.no_grad():
        loss = engine.evaluate.run(micro.__getitem__, scale=0.0, on_reduce=lambda chunk: None)
        expected = sum(chunk_of(recipe.model).module(None, m) for m in micro)
    assert float(loss) == pytest.approx(float(expected), rel=TOLERANCE)
    assert not any(bool(gradient.any()) for _, gradient in gradients(engine))


def test_every_action_leaves_its_event_in_order(tmp_path: Path):
    recipe = recipe_of("interleaved", 2)
    path = tmp_path / "events.jsonl"
    with EventWriter(path, 0) as events:
        engine = engine_of(recipe, events)
        micro = [batch(recipe.model, step=m) for m in range(MICRO_BATCHES)]
        engine.train.run(micro.__getitem__, scale=1.0, on_reduce=lambda chunk: None)
    spans = [e for e in read_events(path) if e.kind == "span" and e.name != "wait"]
    found = [
        Action(Kind[e.name.upper()], e.attrs["chunk"], e.attrs.get("microbatch")) for e in spans
    ]
    assert tuple(found) == engine.train.program
    assert {e.stream for e in spans if e.name in ("forward", "backward")} == {"compute"}


def test_a_forward_without_its_backward_is_seen():
    recipe = recipe_of("1f1b", 1)
    engine = engine_of(recipe)
    pipeline = engine.train
    pipeline.program = tuple(a for a in pipeline.program if a.kind is not Kind.BACKWARD)
    micro = [batch(recipe.model, step=m) for m in range(MICRO_BATCHES)]
    with pytest.raises(AssertionError, match="forwards without a backward"):
        pipeline.run(micro.__getitem__, scale=1.0, on_reduce=lambda chunk: None)
