import logging

import msgspec
import numpy as np
import pytest

from engine.data.samples import (
    SYNTHETIC_SAMPLES,
    open_samples,
    training_order,
    validation_order,
)
from engine.errors import RecipeError
from tests.engine.data.files import recipe, spec, write_jsonl


@pytest.fixture
def source(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text number {i} " * 3 for i in range(60)])
    return spec(path, validation=0.2, cache=str(tmp_path / "cache"))


def test_both_sides_are_cut_to_the_models_length(source):
    train, held_out = open_samples(recipe(source, seq=16))
    assert train.seq == held_out.seq == 16
    assert 1.5 < len(train) / len(held_out) < 10


def test_too_little_held_out_is_an_error(source):
    with pytest.raises(RecipeError, match=r"fewer than batch\.global_batch = 512") as info:
        open_samples(recipe(source, global_batch=512))
    assert "data.validation above 0.2" in info.value.remedy
    assert open_samples(recipe(source, global_batch=512, eval_batches=0))[1] is None


def test_validation_takes_what_there_is_and_says_so(source, caplog):
    caplog.set_level(logging.INFO)
    asked = recipe(source, eval_batches=10_000)
    _, held_out = open_samples(asked)
    order = validation_order(asked, held_out)
    assert order.num_samples == len(held_out) // 4 * 4
    assert "instead of 10000" in caplog.text
    assert order.at(np.arange(5))[1].tolist() == [0, 1, 2, 3, 4]


def test_the_seed_of_the_run_shuffles_its_samples(source):
    asked = recipe(source)
    train, _ = open_samples(asked)
    orders = [
        training_order(r, train).at(np.arange(len(train)))[1].tolist()
        for r in (asked, msgspec.structs.replace(asked, seed=2))
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(len(train)))


def test_synthetic_sides_do_not_share_samples():
    asked = recipe(spec(format="synthetic", validation=0.1), eval_batches=3)
    train, held_out = open_samples(asked)
    assert len(train) == SYNTHETIC_SAMPLES
    assert len(held_out) == 12
    first = held_out.samples(np.array([0]))[0].tolist()
    assert first != train.samples(np.array([0]))[0].tolist()
    assert first == train.samples(np.array([SYNTHETIC_SAMPLES]))[0].tolist()
