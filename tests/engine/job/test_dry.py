"""What a dry run says, against what a rank would really hold."""

import msgspec
import pytest

from engine.job.dry import dry_run
from engine.schedule.verify import peak_activations
from engine.spec.layout import ParallelLayout
from engine.spec.load import load_recipe
from engine.spec.recipe import BatchSpec, Recipe
from engine.train.build import step_program
from tests.engine.train.single import engine_of, recipe

PARAMS_TOLERANCE = 0.02
"""Norms and biases that every tp rank holds in full are divided by tp in the estimate."""


def made(layout: ParallelLayout) -> Recipe:
    model = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 128, "seq": 16}
    one = recipe(model=model | {"head_dim": 0, "kv_heads": 0, "ffn": 0})
    return msgspec.structs.replace(
        one, layout=layout, batch=BatchSpec(global_batch=8 * layout.dp, micro_batch=1)
    )


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(),
        ParallelLayout(tp=2),
        ParallelLayout(pp=2, vpp=2),
        ParallelLayout(pp=4, dp=2),
    ],
    ids=str,
)  # fmt: skip
def test_parameters_of_a_stage_are_those_its_ranks_hold(layout):
    run = made(layout)
    for stage in dry_run(run).stages:
        engine = engine_of(run, layout, layout.dp * layout.tp * stage.stage)
        held = sum(unit.shard.flat.numel for unit in engine.all_units())
        assert stage.params == pytest.approx(held, rel=PARAMS_TOLERANCE)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_the_bubble_is_that_of_the_formula(pp, vpp):
    run = made(ParallelLayout(pp=pp, vpp=vpp))
    assert dry_run(run).bubble == pytest.approx((pp - 1) / (vpp * 8))


def test_activations_in_flight_are_those_of_the_program():
    run = made(ParallelLayout(pp=4))
    program = step_program(run)
    found = [stage.in_flight for stage in dry_run(run).stages]
    assert found == [peak_activations(program, stage) for stage in range(4)] == [4, 3, 2, 1]


def test_memory_falls_with_each_way_of_dividing_it():
    whole = dry_run(made(ParallelLayout())).stages[0].memory_bytes
    for layout in (ParallelLayout(tp=2), ParallelLayout(pp=2), ParallelLayout(dp=2)):
        assert dry_run(made(layout)).stages[-1].memory_bytes < whole


def test_state_takes_sixteen_bytes_a_parameter_in_float32_without_sharding():
    run = made(ParallelLayout(zero=0))
    stage = dry_run(run).stages[0]
    activations = 8 // 8 * 16 * (9 * 64 + 2 * 256) * 4 * 4  # s b (9 h + 2 f), 4 bytes, 4 layers
    assert stage.memory_bytes == 16 * stage.params + activations


def test_the_papers_run_can_be_looked_at(root):
    dry = dry_run(load_recipe(root / "recipes" / "175b.toml"))
    assert (dry.world, dry.microbatches, dry.schedule) == (12288, 32, "interleaved")
    assert dry.bubble == pytest.approx(7 / (6 * 32))
    assert sum(stage.layers for stage in dry.stages) == 96


def test_the_grid_shows_every_stage_if_it_can_be_read():
    assert len(dry_run(made(ParallelLayout(pp=2))).grid.splitlines()) >= 2
    wide = msgspec.structs.replace(
        made(ParallelLayout()), batch=BatchSpec(global_batch=4096, micro_batch=1)
    )
    assert dry_run(wide).grid == ""
