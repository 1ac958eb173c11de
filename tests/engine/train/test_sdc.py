"""Silent data corruption: healthy replicas agree, nothing is learnt from it, who lies is named."""

from typing import Any

import msgspec
import pytest

from bench.ranks import World
from engine.job.cause import find_cause
from engine.train.failure import Mismatch, RankFailure
from engine.train.sdc import ReplicaCheck
from tests.engine.train.single import engine_of, recipe

Case = dict[str, Any]
RUN = "tests.engine.train.replicas:train_and_compare"

LAYOUTS: dict[int, list[Case]] = {
    4: [
        {"layout": {"dp": 4, "zero": 0}},
        {"layout": {"dp": 4, "zero": 2}, "precision": "bf16", "shape": "llama"},
        {"layout": {"dp": 2, "pp": 2, "vpp": 2}, "shape": "dropout"},
        {"layout": {"dp": 2, "pp": 2}, "schedule": "zero-bubble"},
        {"layout": {"dp": 2, "pp": 2, "vpp": 2}, "schedule": "zb-v", "recompute": "full"},
        {"layout": {"dp": 2, "tp": 2}, "tp_pieces": 4, "micro_batch": 2},
        {"layout": {"dp": 2, "tp": 2}, "tp_halves": True, "micro_batch": 2},
        {"layout": {"dp": 2, "tp": 2, "sequence_parallel": False}, "shape": "gpt-untied"},
    ],
    8: [
        {"layout": {"dp": 4, "pp": 2}}, {"layout": {"dp": 4, "tp": 2}},
        {"layout": {"dp": 2, "pp": 2, "tp": 2, "vpp": 2}},
    ],
}  # fmt: skip


@pytest.mark.multi
@pytest.mark.parametrize("ranks", LAYOUTS)
def test_healthy_replicas_agree_and_training_stays_the_same_bit_by_bit(world: World, ranks: int):
    cases = [case | {"steps": 2} for case in LAYOUTS[ranks]]
    for with_it, without in zip(
        world.run(RUN, ranks, cases),
        world.run(RUN, ranks, [case | {"compare": False} for case in cases]),
        strict=True,
    ):
        assert [one["seen"] for one in with_it] == [None] * len(cases)
        assert with_it == without


def named(results: list[list[dict]], number: int) -> tuple[tuple[int, ...], bool, str]:
    """Ranks that the driver names for a case, whether it is sure, and what it says."""
    failures = []
    for rank, cases in enumerate(results):
        seen = msgspec.convert(cases[number]["seen"], Mismatch)
        failures.append(RankFailure(rank=rank, kind="RunFailed", what="", mismatch=seen))
    cause = find_cause([], failures)
    assert cause.is_corruption
    return cause.ranks, cause.is_own, cause.what


@pytest.mark.multi
def test_the_rank_that_computes_wrong_is_named_whatever_its_place(world: World):
    in_halves = {"layout": {"dp": 4, "tp": 2}, "tp_halves": True, "micro_batch": 2}
    culprits = [
        ({"layout": {"dp": 4, "pp": 2}}, (0, 3, 7)), ({"layout": {"dp": 4, "tp": 2}}, (0, 3, 4)),
        (in_halves, (5,)),
    ]  # fmt: skip
    cases = [
        case | {"steps": 2, "flip": (rank, 1)} for case, ranks in culprits for rank in ranks
    ]  # fmt: skip
    results = world.run(RUN, 8, cases)
    for number, case in enumerate(cases):
        ranks, sure, what = named(results, number)
        assert (ranks, sure) == ((case["flip"][0],), True), (case, what)
        assert "the same at a second try" in what


@pytest.mark.multi
def test_of_two_replicas_only_one_that_changes_its_mind_is_named(world: World):
    layout = {"dp": 2, "pp": 2, "tp": 2}
    steady, fickle = {"flip": (5, 1)}, {"flip": (5, 1), "once": True}
    both = [{"layout": layout, "steps": 3} | how for how in (steady, fickle)]
    results = world.run(RUN, 8, both)
    two, sure, _ = named(results, 0)
    assert len(two) == 2
    assert 5 in two
    assert not sure
    one, sure, what = named(results, 1)
    assert (one, sure) == ((5,), True)
    assert "other numbers at a second try" in what


def test_it_is_due_every_so_often_and_before_saves():
    made = recipe(job={"sdc_every": 4})
    check = ReplicaCheck(made, engine_of(made))
    assert [done for done in range(1, 9) if check.is_due(done, saves=False)] == [4, 8]
    assert check.is_due(5, saves=True)
