"""Equality: every layout trains as the plain single-process model does."""

from typing import Any

import pytest

from tests.parallel_case import reference, worst
from tests.world import World

FLOAT64_TOLERANCE = 1e-10
FLOAT32_TOLERANCE = 1e-5

pytestmark = pytest.mark.multi

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"dp": 2, "zero": 0},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 2},
    {"pp": 2},
    {"pp": 2, "vpp": 2},
    {"pp": 4, "vpp": 2},
    {"tp": 2, "pp": 2, "vpp": 2, "dp": 2},
    {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "sequence_parallel": False},
    {"tp": 4, "dp": 2},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("shape", "block"), [("gpt", "serial"), ("llama", "parallel")], ids=lambda v: str(v)
)
def test_layout_equals_the_plain_model(
    world: World, layout: dict[str, Any], shape: str, block: str
) -> None:
    args = {"layout": layout, "shape": shape, "block": block}
    ranks = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
    results = world.run("tests.parallel_case:train", ranks, args)
    assert worst(reference(args), results[0]) < FLOAT64_TOLERANCE
    assert all(r == results[0] for r in results), "ranks disagree about the loss"


@pytest.mark.parametrize("shape", ["gpt-untied", "gpt-rotary", "window", "dropout"])
def test_model_variants_equal_the_plain_model(world: World, shape: str) -> None:
    args = {"layout": {"tp": 2, "pp": 2, "vpp": 2, "dp": 2}, "shape": shape, "micro_batch": 2}
    results = world.run("tests.parallel_case:train", 8, args)
    assert worst(reference(args), results[0]) < FLOAT64_TOLERANCE


def test_float32_stays_within_rounding(world: World) -> None:
    args = {"layout": {"tp": 2, "pp": 2, "vpp": 2, "dp": 2}, "precision": "fp32"}
    results = world.run("tests.parallel_case:train", 8, args)
    assert worst(reference(args), results[0]) < FLOAT32_TOLERANCE


def test_the_same_layout_twice_is_bitwise_equal_overlap_on_or_off(world: World) -> None:
    args = {"layout": {"tp": 2, "pp": 2, "vpp": 2, "dp": 2}, "precision": "fp32"}
    first = world.run("tests.parallel_case:train", 8, args)
    again = world.run("tests.parallel_case:train", 8, args)
    coupled = world.run("tests.parallel_case:train", 8, args | {"overlap": False})
    assert first == again
    assert first == coupled


@pytest.mark.parametrize("shape", ["gpt", "gpt-untied"])
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("gpipe", {"pp": 2, "dp": 2}),
        ("zero-bubble", {"pp": 4}),
        ("zero-bubble", {"pp": 2, "vpp": 2, "tp": 2}),
        ("zb-v", {"pp": 2, "vpp": 2}),
        ("zb-v", {"pp": 4, "vpp": 2, "dp": 2}),
    ],
    ids=str,
)
def test_schedules_equal_the_plain_model(
    world: World, kind: str, layout: dict[str, Any], shape: str
) -> None:
    args = {"layout": layout, "schedule": kind, "shape": shape}
    ranks = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
    results = world.run("tests.parallel_case:train", ranks, args)
    assert worst(reference(args), results[0]) < FLOAT64_TOLERANCE


@pytest.mark.parametrize("shape", ["gpt", "llama"])
@pytest.mark.parametrize("block", ["serial", "parallel"])
def test_chunked_tensor_parallel_equals_the_plain_model_and_itself_without_overlap(
    world: World, shape: str, block: str
) -> None:
    layout = {"tp": 2, "pp": 2, "vpp": 2}
    args = {"layout": layout, "shape": shape, "block": block, "tp_pieces": 4}
    ahead = world.run("tests.parallel_case:train", 4, args)
    assert worst(reference(args), ahead[0]) < FLOAT64_TOLERANCE
    assert ahead == world.run("tests.parallel_case:train", 4, args | {"overlap": False})


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("kind", ["interleaved", "zb-v"])
def test_recomputation_changes_nothing(world: World, recompute: str, kind: str) -> None:
    layout = {"tp": 2, "pp": 2, "vpp": 2}
    args = {"layout": layout, "shape": "dropout", "block": "parallel", "schedule": kind}
    kept = world.run("tests.parallel_case:train", 4, args)
    assert kept == world.run("tests.parallel_case:train", 4, args | {"recompute": recompute})
