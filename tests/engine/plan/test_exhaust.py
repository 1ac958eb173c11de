import pytest

from engine.plan.exhaust import exhaust, full_space
from engine.plan.search import Space, enumerate_grid, search
from tests.engine.plan.case import job


@pytest.mark.slow
def test_the_complete_search_finds_the_winner_of_the_pruned_one():
    one = job("175b", gpus=1024, batch=768)
    complete = exhaust(one, 1024, top=3)
    pruned = search(one, 1024, Space(), top=1).candidates[0]
    assert complete.enumerated > 500_000
    assert complete.feasible < complete.enumerated
    best = complete.candidates[0]
    assert best.step_s <= pruned.step_s * (1 + 1e-9)
    assert (best.layout.tp, best.layout.pp, best.layout.vpp, best.layout.micro_batch) == (
        pruned.layout.tp, pruned.layout.pp, pruned.layout.vpp, pruned.layout.micro_batch,
    )  # fmt: skip


def test_a_layout_is_shown_once_with_its_system_s_own_switches_where_others_do_nothing():
    found = exhaust(job("13b", gpus=8, batch=64), 8, Space(tp=(2,), zero=(0, 1, 2, 3)), top=6)
    layouts = [c.layout for c in found.candidates]
    assert len(set(layouts)) == len(layouts) == 6
    alone = exhaust(job("small", gpus=1, batch=8), 1, top=3).candidates
    assert len({c.layout for c in alone}) == 3
    assert {c.layout.zero for c in alone} == {1}, "one replica has nothing to shard over"
    assert [c.switches for c in alone] == [{}, {}, {}]


def test_the_complete_space_contains_the_pruned_one():
    one = job("13b", gpus=64)
    wide, narrow = (enumerate_grid(one, 64, s) for s in (full_space(one), Space()))
    rows = {tuple(row) for row in zip(*wide, strict=True)}
    assert {tuple(row) for row in zip(*narrow, strict=True)} <= rows
