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


def test_the_complete_space_contains_the_pruned_one():
    one = job("13b", gpus=64)
    wide, narrow = (enumerate_grid(one, 64, s) for s in (full_space(one), Space()))
    rows = {tuple(row) for row in zip(*wide, strict=True)}
    assert {tuple(row) for row in zip(*narrow, strict=True)} <= rows
