import pytest

from engine.plan.explain import budget, sensitivities, waterfall
from engine.plan.search import Space, search
from engine.plan.setup import PlanLayout
from engine.plan.simulate import simulate_step
from tests.engine.plan.case import job


@pytest.mark.parametrize("system", ["megascale", "megatron-2023", "fsdp"])
def test_the_waterfall_ends_at_the_mfu(system):
    one = job("175b", gpus=1024, batch=768, system=system)
    layout = PlanLayout(tp=8, pp=8, vpp=6, dp=16)
    step = simulate_step(one, layout)
    shares = waterfall(one, layout, step)
    from engine.plan.cost import mfu

    useful = float(mfu(one, step.step_s, 1024))
    assert useful + sum(s.points for s in shares) == pytest.approx(1.0)
    assert abs(shares[-1].points) < 0.04  # what no named cause explains
    named = {s.cause: s.points for s in shares}
    assert named["matrix products and attention below peak"] > 0.1


@pytest.mark.slow
def test_changes_move_the_step_the_way_they_should():
    one = job("175b", gpus=1024, batch=768)
    best = search(one, 1024, Space(), top=1).candidates[0]
    found = {s.change: s for s in sensitivities(one, best)}
    assert found["a second NIC per device"].points > 0
    assert found["half the network"].points < 0
    assert found["GEMM kernels 10 % faster"].points > found["memory 25 % faster"].points
    points = [s.points for s in sensitivities(one, best)]
    assert points == sorted(points, reverse=True)


def test_the_paper_s_days_for_300_g_tokens():
    one = job("175b", gpus=12288, batch=6144)
    found = search(one, 12288, Space(tp=(8,), pp=(8,), vpp=(6,), micro_batch=(1,)), top=1)
    spent = budget(found.candidates[0], 300e9, 2.0)
    assert spent.days == pytest.approx(1.75, rel=0.15)  # Table 2, last row, without its block
