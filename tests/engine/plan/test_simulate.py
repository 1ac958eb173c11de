from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events.schema import check
from engine.plan import simulate
from engine.plan.price import price
from engine.plan.setup import PlanLayout, single
from tests.engine.plan.case import job


def ideal(prices):
    """The same prices without ends and communication: a uniform pipeline."""
    nothing = ("embed_f", "embed_b", "head_f", "head_b", "send_s", "gather_s", "reduce_s",
               "tail_s", "tail_dp_s", "tp_s", "micro_dp_s")  # fmt: skip
    return prices._replace(**dict.fromkeys(nothing, 0.0))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([2, 4, 8]), st.sampled_from([1, 5]), st.integers(1, 6))
def test_the_bubble_is_the_closed_form(pp, vpp, rounds):
    vpp = vpp if 40 % (pp * vpp) == 0 else 1
    layout = PlanLayout(pp=pp, vpp=vpp)
    one = job("13b", gpus=pp, batch=pp * rounds)
    prices = ideal(simulate.scalars(price(one, single(layout))))
    step = simulate.step_of(one, layout, prices)
    assert step.bubble == pytest.approx((pp - 1) / (vpp * pp * rounds), rel=1e-9)
    assert step.exposed_pp_s == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("system", ["megascale", "megatron-2023", "nemo"])
@pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (4, 2), (8, 5)])
def test_a_few_rounds_say_what_all_rounds_do(system, pp, vpp, monkeypatch):
    layout = PlanLayout(tp=2, pp=pp, vpp=vpp, dp=2)
    one = job("13b", gpus=4 * pp, batch=2 * 10 * pp, system=system)
    short = simulate.simulate_step(one, layout)
    monkeypatch.setattr(simulate, "_ROUNDS", (2, 1000))
    whole = simulate.simulate_step(one, layout)
    assert short.step_s == pytest.approx(whole.step_s, rel=2e-3)


def test_predicted_events_are_of_the_schema_and_fill_the_step():
    layout = PlanLayout(tp=8, pp=4, vpp=2, dp=2)
    one = job("13b", gpus=64, batch=16)
    events = simulate.predicted_events(one, layout)
    assert [check(event) for event in events if check(event)] == []
    assert {e.rank for e in events} == {0, 16, 32, 48}
    length = simulate.simulate_step(one, layout).step_s
    steps = [e for e in events if e.name == "step"]
    assert all(e.dur_ns == pytest.approx(1e9 * length, rel=1e-6) for e in steps)
    assert sum(e.name == "forward" for e in events) == 8 * 8
    for rank in (0, 16, 32, 48):
        mine = [e for e in events if e.rank == rank]
        assert [e.seq for e in mine] == list(range(len(mine))), "as in the file of a rank"
        assert mine[0].name == "clock"
        assert {e.step for e in mine[1:]} == {1}, "steps count from one"


def test_predicted_waits_and_work_fill_the_compute_lane_of_a_rank():
    one = job("13b", gpus=64, batch=16)
    events = simulate.predicted_events(one, PlanLayout(tp=8, pp=4, vpp=2, dp=2))
    lanes = {e.name: e.stream for e in events}
    assert {lanes["wait"], lanes["forward"], lanes["backward"]} == {"compute"}
    assert lanes["optimizer"] == lanes["step"] == "host", "as measured ones"
    for rank in (0, 48):
        lane = sorted((e for e in events if e.rank == rank and e.stream == "compute"),
                      key=lambda e: e.t_ns)  # fmt: skip
        gaps = [b.t_ns - a.t_ns - a.dur_ns for a, b in pairwise(lane)]
        assert max(map(abs, gaps)) <= 2, "nothing between them, but for rounding"
        assert sum(e.name == "wait" for e in lane) > 0
        assert all(e.attrs["on"] for e in lane if e.name == "wait")


@pytest.mark.parametrize(("model", "gpus", "dp"), [("13b", 64, 8), ("175b", 512, 64)])
def test_without_a_pipeline_none_of_its_communication_is_exposed(model, gpus, dp):
    for micro in (1, 2, 4):
        layout = PlanLayout(tp=8, dp=dp, micro_batch=micro)
        step = simulate.simulate_step(job(model, gpus=gpus, batch=6144), layout)
        assert step.exposed_pp_s == 0.0


def test_exposed_parts_are_within_the_step():
    step = simulate.simulate_step(job("175b", gpus=12288, batch=6144),
                                  PlanLayout(tp=8, pp=8, vpp=6, dp=192))  # fmt: skip
    exposed = step.exposed_tp_s + step.exposed_pp_s + step.exposed_dp_s
    assert 0 < exposed < 0.25 * step.step_s
