import pytest

from engine.spec.cluster import ClusterSpec
from engine.spec.convert import (
    all_keys,
    convert_section,
    declared_at,
    noun_of,
    rule_of,
    takes_text,
    takes_texts,
)
from engine.spec.layout import ParallelLayout
from engine.spec.recipe import DataSpec, OptimSpec, Recipe, TrainSpec


def _what(noun, table):
    return [(p.what, p.remedy) for p in convert_section(noun, table, "s")[1]]


@pytest.mark.parametrize(
    ("table", "what", "remedy"),
    [({"tp": 0}, "s.tp = 0 is not a whole number of at least 1", "set s.tp to a whole number"),
     ({"tp": "2"}, 's.tp = "2" is not', "write tp = 2, without quotes"),
     ({"tp": 2.0}, "s.tp = 2.0 is not", "write tp = 2"),
     ({"tp": True}, "s.tp = true is not", "set s.tp to"),
     ({"tpp": 2}, "s.tpp is not a key of [s]", "did you mean tp?"),
     ({"gpus": 2}, "s.gpus is not a key of [s]", "use one of tp, pp, vpp, dp,"),
     ({"zero": 3}, "s.zero = 3 is not one of 0, 1, 2", "set s.zero to one of"),
     ({"sequence_parallel": "True"}, "is not true or false", "write sequence_parallel = true"),
     ({"x" * 200: 1}, "... is not a key", "use one of"), ([1], "s = [1] is not a section", "[s]"),
     ({"tp": list(range(100))}, " ... is not a whole", "set s.tp")],
)  # fmt: skip
def test_wrong_keys(table, what, remedy):
    ((got, advice),) = _what(ParallelLayout, table)
    assert what in got
    assert remedy in advice


@pytest.mark.parametrize(
    ("noun", "table", "what", "remedy"),
    [(OptimSpec, {"decay": "cosin"}, 'is not one of "constant", "cosine"',
     'did you mean "cosine"?'),
     (OptimSpec, {"lr": float("nan")}, "s.lr = nan is not a number above 0", "set s.lr"),
     (OptimSpec, {"lr": float("inf")}, "s.lr = inf is not a number above 0", "set s.lr"),
     (OptimSpec, {"lr": 10**400}, "is not a number above 0", "set s.lr"),
     (OptimSpec, {"beta1": 2}, "s.beta1 = 2 is not a number from 0 to 1", "set s.beta1"),
     (DataSpec, {"source": "a"}, 's.source = "a" is not a list of texts', 'write source = ["a"]'),
     (TrainSpec, {"port": 70000}, "a whole number from 0 to 65535", "set s.port")],
)  # fmt: skip
def test_wrong_values(noun, table, what, remedy):
    ((got, advice),) = _what(noun, table)
    assert what in got
    assert remedy in advice


def test_everything_wrong_is_found_and_the_rest_is_kept():
    table = {"name": "x", "seed": 7, "model": {"layers": "4", "hidden": 8}, "batch": 3, "lyout": {}}
    recipe, problems = convert_section(Recipe, table)
    assert recipe.seed == 7
    assert recipe.model.hidden == 8
    assert [p.keys[0] for p in problems] == [
        "lyout", "model.layers", "model.heads", "model.vocab", "model.seq", "batch",
    ]  # fmt: skip


def test_a_misspelt_required_key_is_reported_once():
    _, problems = convert_section(Recipe, {"name": "x", "batch": {"global_batsh": 1}, "model": 1})
    assert [p.keys[0] for p in problems] == ["batch.global_batsh", "model"] or [
        p.keys[0] for p in problems
    ] == ["model", "batch.global_batsh"]


def test_the_parts_of_a_missing_section_need_not_be_listed():
    _, problems = convert_section(ClusterSpec, {})
    assert [p.keys[0] for p in problems] == ["device", "intra", "inter"]


def test_keys_of_a_recipe():
    keys = all_keys(Recipe)
    assert keys[:3] == ["name", "seed", "model.layers"]
    assert "cluster.device.memory_bytes" in keys
    for key in keys:
        assert declared_at(Recipe, key.split(".")) is not None
    assert declared_at(Recipe, ("layout", "tpp")) is None
    assert declared_at(Recipe, ("seed", "x")) is None
    assert declared_at(Recipe, ("cluster", "device", "peak_flops_per_s", "bf16")) is float


def test_types_are_recognised():
    assert noun_of(ClusterSpec | None) is ClusterSpec
    assert noun_of(int) is None
    assert takes_text(declared_at(Recipe, ("name",)))
    assert not takes_text(declared_at(Recipe, ("schedule", "kind")))
    assert takes_texts(declared_at(Recipe, ("data", "source")))
    assert rule_of(declared_at(Recipe, ("model", "window"))) == (
        "a whole number or a list of whole numbers"
    )
