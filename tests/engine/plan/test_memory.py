import pytest

from engine.plan.memory import MARGIN, fits, in_flight, layer_bytes, memory_of, peak_memory
from engine.plan.setup import PlanLayout, grid_of, single
from engine.schedule.build import build
from engine.schedule.verify import peak_activations
from tests.engine.plan.case import job, replace

SHAPES = [(p, v, m) for p in (2, 3, 4, 8) for v in (1, 2, 3) for m in (p, 2 * p, 5 * p)]


@pytest.mark.parametrize(("pp", "vpp", "m"), SHAPES)
def test_in_flight_is_what_the_verifier_counts(pp, vpp, m):
    schedule = build("auto", pp, vpp, m)
    grid = single(PlanLayout(pp=pp, vpp=vpp))
    for stage in range(pp):
        assert in_flight(grid, float(m), float(stage)) == peak_activations(schedule, stage)


def test_a_layer_of_the_paper_s_model_keeps_about_34_sbh_over_t():
    one = job("175b", gpus=12288, batch=6144)
    expected = 34 * 2048 * 12288 / 8  # selective or flash, sequence parallel, with dropout masks
    kept = layer_bytes(one, single(PlanLayout(tp=8)))
    assert 0.8 * expected < kept < expected


def test_states_take_18_bytes_a_parameter_without_sharding():
    one = job("13b", gpus=8, system="megatron-2023")
    parts = memory_of(one, single(PlanLayout(zero=0)), 0.0)
    states = parts.weights + parts.gradients + parts.optimizer
    assert states / one.model.params == pytest.approx(18, rel=0.01)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sharding_saves_memory(zero):
    one = job("13b", gpus=64)
    less, more = (
        float(peak_memory(one, single(PlanLayout(dp=8, zero=z))).total) for z in (zero, zero - 1)
    )
    assert less <= more


def test_what_fits_does_so_with_a_margin():
    one = job("13b", gpus=64)
    memory = peak_memory(one, grid_of([PlanLayout(tp=8, dp=8)]))
    tight = replace(
        one,
        cluster=replace(
            one.cluster,
            device=replace(one.cluster.device, memory_bytes=int(memory.total[0] * MARGIN) + 1),
        ),
    )
    too_tight = replace(
        one,
        cluster=replace(
            one.cluster,
            device=replace(one.cluster.device, memory_bytes=int(memory.total[0] * MARGIN) - 2),
        ),
    )
    assert fits(tight, memory)[0]
    assert not fits(too_tight, memory)[0]


@pytest.mark.parametrize(("kind", "vpp"), [("gpipe", 1), ("zero-bubble", 1), ("zero-bubble", 3)])
def test_the_closed_forms_of_other_schedules_count_what_the_verifier_counts(kind, vpp):
    for pp, rounds in ((2, 2), (4, 3), (4, 5)):
        m = pp * rounds
        schedule = build(kind, pp, vpp, m)
        grid = grid_of([PlanLayout(pp=pp, vpp=vpp, schedule=kind)])
        for stage in range(pp):
            counted = peak_activations(schedule, stage)
            assert float(in_flight(grid, float(m), float(stage))[0]) == pytest.approx(counted)
