"""Equality: every layout, schedule and technique trains as the plain single-process model does.

A representative set, of each case the first steps; `bench/equality.py` runs all cases whole. Cases
of one number of ranks share a world.
"""

import itertools
from typing import Any

import pytest

from bench.case import recipe_of, reference, worst
from bench.ranks import World

STEPS = 5
FLOAT64_TOLERANCE = 1e-10
FLOAT32_TOLERANCE = 1e-5

pytestmark = pytest.mark.multi

Case = dict[str, Any]

ALL_AXES: Case = {"tp": 2, "pp": 2, "vpp": 2, "dp": 2}
LAYOUTS: dict[int, list[Case]] = {
    1: [{}, {"vpp": 2}],
    2: [
        {"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"dp": 2, "zero": 0},
        {"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {"pp": 2}, {"pp": 2, "vpp": 2},
    ],
    4: [{"pp": 4, "vpp": 2}, {"tp": 2, "pp": 2, "sequence_parallel": False}, {"tp": 2, "dp": 2}],
    8: [
        ALL_AXES, {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "sequence_parallel": False},
        {"tp": 4, "dp": 2},
    ],
}  # fmt: skip
SCHEDULES: dict[int, list[Case]] = {
    2: [
        {"schedule": "zb-v", "layout": {"pp": 2, "vpp": 2}},
        {"schedule": "1f1b", "layout": {"pp": 2}, "run_ahead": 2},
        {"schedule": "interleaved", "layout": {"pp": 2, "vpp": 2}, "group": 4},
        {"schedule": "zero-bubble", "layout": {"pp": 2}, "run_ahead": 2},
    ],
    4: [
        {"schedule": "gpipe", "layout": {"pp": 2, "dp": 2}},
        {"schedule": "breadth-first", "layout": {"pp": 4, "vpp": 2}},
        {"schedule": "zero-bubble", "layout": {"pp": 4}},
        {"schedule": "zero-bubble", "layout": {"pp": 2, "vpp": 2, "tp": 2}},
    ],
    8: [{"schedule": "zb-v", "layout": {"pp": 4, "vpp": 2, "dp": 2}}],
}


def run(world: World, cases: list[Case]) -> list[list[tuple[float, float]]]:
    """Rank 0's losses and norms of each case; all ranks must agree on them, bit by bit."""
    ranks = recipe_of(cases[0]).layout.world_size
    short = [case | {"steps": STEPS} for case in cases]
    first, *others = world.run("bench.case:train_all", ranks, short)
    for other in others:
        assert other == first, "ranks disagree about the loss"
    return [[tuple(step) for step in steps] for steps in first]


def assert_equal_to_the_plain_model(world: World, cases: list[Case], tolerance: float) -> None:
    compare(cases, run(world, cases), tolerance)


def compare(cases: list[Case], results: list[list[tuple[float, float]]], tolerance: float) -> None:
    found = {str(c): worst(reference(c)[:STEPS], r) for c, r in zip(cases, results, strict=True)}
    assert all(error < tolerance for error in found.values()), found


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_layouts_equal_the_plain_model(world: World, ranks: int) -> None:
    shapes: list[Case] = [
        {"shape": "gpt", "block": "serial"}, {"shape": "llama", "block": "parallel"},
    ]  # fmt: skip
    cases = [{"layout": layout, **shape} for layout in LAYOUTS[ranks] for shape in shapes]
    assert_equal_to_the_plain_model(world, cases, FLOAT64_TOLERANCE)


@pytest.mark.parametrize("ranks", SCHEDULES)
def test_schedules_equal_the_plain_model(world: World, ranks: int) -> None:
    cases = [c | {"shape": shape} for c in SCHEDULES[ranks] for shape in ("gpt", "gpt-untied")]
    assert_equal_to_the_plain_model(world, cases, FLOAT64_TOLERANCE)


def test_replicas_that_share_nodes_equal_the_plain_model(world: World) -> None:
    """Two replicas on each of two nodes: gathers and reductions in two levels."""
    layouts: list[Case] = [{"dp": 4, "zero": 1}, {"dp": 4, "vpp": 2, "zero": 2}]
    cases: list[Case] = [{"layout": layout, "ranks_per_node": 2} for layout in layouts]
    assert_equal_to_the_plain_model(world, cases, FLOAT64_TOLERANCE)


@pytest.mark.parametrize(
    "layout", [{"tp": 2, "pp": 2, "vpp": 2}, {"pp": 2, "vpp": 2, "dp": 2}, ALL_AXES], ids=str
)
def test_what_overlaps_changes_no_bit(world: World, layout: Case) -> None:
    """All combinations of the three dimensions that the layout has."""
    axes = [axis for axis in ("tp", "pp", "dp") if layout.get(axis, 1) > 1]
    wishes = [list(wish) for n in range(len(axes) + 1) for wish in itertools.combinations(axes, n)]
    cases: list[Case] = [
        {"layout": layout, "overlap": wish, "tp_pieces": 2, "precision": "fp32"} for wish in wishes
    ]
    first, *others = run(world, cases)
    assert others == [first] * (2 ** len(axes) - 1)


def test_model_variants_equal_the_plain_model(world: World) -> None:
    shapes = ("gpt-untied", "gpt-rotary", "window", "dropout")
    cases = [{"layout": ALL_AXES, "shape": shape} for shape in shapes]
    assert_equal_to_the_plain_model(world, cases, FLOAT64_TOLERANCE)


def test_float32_stays_within_rounding_and_is_bitwise_repeatable(world: World) -> None:
    """The same layout twice, and with nothing overlapped, gives the same bits."""
    case = {"layout": ALL_AXES, "precision": "fp32"}
    first, again, coupled = run(world, [case, case, case | {"overlap": False}])
    compare([case], [first], FLOAT32_TOLERANCE)
    assert first == again
    assert first == coupled


def test_chunked_tensor_parallel_equals_the_plain_model_and_itself_without_overlap(
    world: World,
) -> None:
    shapes = [(shape, block) for shape in ("gpt", "llama") for block in ("serial", "parallel")]
    cases = [
        {"layout": {"tp": 2}, "shape": shape, "block": block, "tp_pieces": 2}
        for shape, block in shapes
    ]
    results = run(world, [*cases, *(case | {"overlap": False} for case in cases)])
    compare(cases, results[: len(cases)], FLOAT64_TOLERANCE)
    assert results[: len(cases)] == results[len(cases) :]
    everything = {"layout": {"tp": 2, "pp": 2}, "tp_pieces": 4}
    assert_equal_to_the_plain_model(world, [everything], FLOAT64_TOLERANCE)


def test_halves_equal_the_plain_model_and_themselves_without_overlap(world: World) -> None:
    """With and without sequence parallelism, whole and cut GEMMs, split backwards."""
    cases: list[Case] = [
        {"layout": {"tp": 2, "sequence_parallel": False}, "shape": "llama"},
        {"layout": {"tp": 2, "sequence_parallel": False}, "block": "parallel"},
        {"layout": {"tp": 2}, "shape": "dropout", "tp_pieces": 2},
        {"layout": {"tp": 2}, "shape": "window", "recompute": "selective"},
    ]
    split: list[Case] = [
        {"layout": {"tp": 2, "pp": 2, "sequence_parallel": False}, "schedule": "zero-bubble"},
        {"layout": {"tp": 2, "pp": 2, "vpp": 2}},
    ]
    for group in (cases, split):
        group = [case | {"tp_halves": True, "micro_batch": 2} for case in group]
        results = run(world, [*group, *(case | {"overlap": False} for case in group)])
        compare(group, results[: len(group)], FLOAT64_TOLERANCE)
        assert results[: len(group)] == results[len(group) :]


@pytest.mark.parametrize("kind", ["interleaved", "zb-v"])
def test_recomputation_changes_nothing(world: World, kind: str) -> None:
    layout = {"pp": 2, "vpp": 2}
    case = {"layout": layout, "shape": "dropout", "block": "parallel", "schedule": kind}
    modes = ("none", "selective", "full")
    kept, *recomputed = run(world, [case | {"recompute": mode} for mode in modes])
    assert recomputed == [kept, kept]


def test_recomputation_changes_nothing_under_tensor_parallelism(world: World) -> None:
    case = {"layout": {"tp": 2}, "shape": "dropout"}
    modes = ("none", "selective", "full")
    kept, *recomputed = run(world, [case | {"recompute": mode} for mode in modes])
    assert recomputed == [kept, kept]
