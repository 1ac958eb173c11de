"""What is known of a parameter: its part under tp, its public name, its first values."""

import math

import pytest
import torch
from torch import nn

from engine.model.parameter import ParamInfo, info_of, initialize, name_parameters, parameter
from engine.model.transformer import Chunk
from engine.spec.model import ModelSpec

MATRIX = ParamInfo("w", (8, 6), 0, "normal", True)


@pytest.mark.parametrize(("split", "numbers"), [(0, 4), (1, 2), (None, 1)])
def test_parts_of_all_ranks_are_disjoint_and_cover_the_tensor(split, numbers):
    info = MATRIX._replace(split=split)
    seen = torch.zeros(info.shape)
    for index in range(numbers):
        seen[tuple(slice(a, b) for a, b in info.box(index, numbers))] += 1
    assert bool((seen == 1).all())


def test_matrices_decay_and_vectors_do_not():
    assert info_of(parameter((2, 3), split=0, init="normal")).decay
    assert not info_of(parameter((3,), split=None, init="ones")).decay
    assert not info_of(parameter((2, 3), split=0, init="normal", decay=False)).decay


def small(**changes: object) -> ModelSpec:
    shape = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 16, "seq": 4}
    return ModelSpec(**(shape | changes))


def names(model: nn.Module) -> list[str]:
    return [info_of(p).name for p in model.parameters()]


def test_public_names_of_a_gpt():
    attn = [f"attn.{p}.{k}" for p in "qkvo" for k in ("weight", "bias")]
    mlp = [f"mlp.{p}.{k}" for p in ("up", "down") for k in ("weight", "bias")]
    layer = ["attn.norm.weight", "attn.norm.bias", *attn, "mlp.norm.weight", "mlp.norm.bias", *mlp]
    expected = ["embed.weight", "position.weight"]
    expected += [f"layers.{i}.{name}" for i in range(2) for name in layer]
    expected += ["final_norm.weight", "final_norm.bias"]
    assert names(Chunk(small(), range(2), first=True, last=True)) == expected


def test_public_names_of_a_parallel_llama():
    spec = small(
        block="parallel", norm="rmsnorm", activation="swiglu", position="rotary", bias=False,
        tied=False, layers=1,
    )  # fmt: skip
    assert names(Chunk(spec, range(1), first=True, last=True)) == [
        "embed.weight",
        "layers.0.both.norm.weight",
        *[f"layers.0.both.{p}.weight" for p in ("q", "k", "v", "up", "gate", "o", "down")],
        "head.weight",
        "final_norm.weight",
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_names_do_not_depend_on_how_the_model_is_cut(tied):
    spec = small(tied=tied, layers=4)
    whole = names(Chunk(spec, range(4), first=True, last=True))
    cut = [
        name
        for i in range(4)
        for name in names(Chunk(spec, range(i, i + 1), first=i == 0, last=i == 3))
    ]
    assert set(cut) == set(whole)
    copies = [name for name in cut if cut.count(name) > 1]
    assert copies == (["embed.weight"] * 2 if tied else [])


def test_both_copies_of_a_tied_matrix_start_alike():
    spec = small()
    first = Chunk(spec, range(1), first=True, last=False)
    last = Chunk(spec, range(1, 2), first=False, last=True)
    for copy in (first.embed.weight, last.head.weight):
        info = info_of(copy)
        with torch.no_grad():
            initialize(copy, info, info.box(0, 1), seed=3, std=0.02, layers=2)
    assert torch.equal(first.embed.weight, last.head.weight)


def test_first_values_by_kind():
    box = MATRIX.box(0, 1)
    made = {}
    for init in ("normal", "scaled", "zeros", "ones"):
        made[init] = torch.full((8, 6), math.nan, dtype=torch.float64)
        initialize(made[init], MATRIX._replace(init=init), box, seed=1, std=0.02, layers=8)
    assert torch.equal(made["zeros"], torch.zeros(8, 6).double())
    assert torch.equal(made["ones"], torch.ones(8, 6).double())
    assert torch.allclose(made["scaled"] * 4, made["normal"])  # sqrt(2 * 8) = 4


def test_the_deviation_is_what_was_asked_for():
    info = ParamInfo("big", (400, 400), None, "normal", True)
    out = torch.empty(400, 400)
    initialize(out, info, info.box(0, 1), seed=1, std=0.02, layers=2)
    error = 5 * 0.02 / math.sqrt(2 * 400 * 400)
    assert float(out.std()) == pytest.approx(0.02, abs=error)


def test_renaming_reaches_every_parameter():
    model = nn.ModuleDict({"a": nn.ModuleDict({"into": nn.ParameterDict()})})
    model["a"]["into"].register_parameter("w", parameter((2, 2), split=0, init="ones"))
    name_parameters(model, tied=False)
    assert names(model) == ["a.w"]
