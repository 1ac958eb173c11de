import time

import msgspec
import numpy as np
import pytest
import torch

from engine.data.dataset import SyntheticDataset
from engine.data.loader import Loader, open_loaders
from engine.data.order import SampleOrder
from engine.data.samples import open_samples
from engine.spec.recipe import BatchSpec
from tests.engine.data.files import recipe, spec, write_jsonl

DATA = SyntheticDataset(seq=16, vocab=64, seed=1, num=37)
LAYOUTS = [(dp, size) for dp in (1, 2, 4, 8) for size in (1, 2, 4) if 16 % (dp * size) == 0]


def loaders(dp, size, shuffle=True):
    order = SampleOrder(len(DATA), seed=9, shuffle=shuffle)
    batch = BatchSpec(global_batch=16, micro_batch=size)
    return [Loader(DATA, order, batch, dp=dp, replica=r) for r in range(dp)]


def step_of(group, step):
    """sample id -> tokens and targets, over all replicas."""
    found = {}
    for loader in group:
        for tokens, targets, ids in loader.microbatches(step):
            for column, key in enumerate(ids.tolist()):
                assert key not in found
                found[key] = (tokens[:, column].tolist(), targets[:, column].tolist())
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_holds_the_same_sequences_under_every_layout(layout):
    for step in (0, 3, 1000):
        assert step_of(loaders(*layout), step) == step_of(loaders(1, 1), step)


def test_ids_are_positions_and_the_order_decides_what_they_hold():
    order = SampleOrder(len(DATA), seed=9)
    found = step_of(loaders(2, 4), 5)
    assert sorted(found) == list(range(80, 96))
    for position, (tokens, targets) in found.items():
        _, number = order.at(np.array([position]))
        row = DATA.samples(number)[0].tolist()
        assert tokens == row[:-1]
        assert targets == row[1:]


def test_steps_in_a_row_lose_and_repeat_nothing():
    ids = [key for step in range(7) for key in step_of(loaders(4, 2), step)]
    assert sorted(ids) == list(range(7 * 16))


def test_going_on_with_another_layout_goes_on_with_the_next_sample():
    before = [step_of(loaders(2, 2), s) for s in range(3)]
    after = [step_of(loaders(8, 1), s) for s in range(3, 6)]
    assert [*before, *after] == [step_of(loaders(1, 4), s) for s in range(6)]


def test_shapes_are_sequence_first():
    micro = loaders(2, 4)[1].microbatches(0)
    assert len(micro) == 2
    for tokens, targets, ids in micro:
        assert tokens.shape == targets.shape == (16, 4)
        assert ids.shape == (4,)
        assert tokens.dtype == targets.dtype == ids.dtype == torch.int64
        assert tokens.is_contiguous()
        assert targets.is_contiguous()


@pytest.fixture
def source(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text number {i} " * 3 for i in range(60)])
    return spec(path, validation=0.2, cache=str(tmp_path / "cache"))


def test_validation_is_the_first_held_out_samples_in_order(source):
    asked = recipe(source, eval_batches=2)
    _, held_out = open_samples(asked)
    loader = open_loaders(asked, replica=1)[1]
    assert loader.steps_per_epoch == 2
    assert loader.tokens_per_byte > 1
    for step in (0, 1):
        for m, (tokens, _, ids) in enumerate(loader.microbatches(step)):
            assert ids.tolist() == [step * 4 + 2 * m + 1]
            assert tokens[:, 0].tolist() == held_out.samples(ids.numpy())[0, :-1].tolist()


def test_validation_shrinks_to_what_there_is(source):
    loader = open_loaders(recipe(source, eval_batches=1000), replica=0)[1]
    _, held_out = open_samples(recipe(source))
    assert loader.steps_per_epoch == len(held_out) // 4 < 1000


def test_no_validation_is_none(source):
    assert open_loaders(recipe(source, eval_batches=0), replica=0)[1] is None
    without = msgspec.structs.replace(source, validation=0.0)
    assert open_loaders(recipe(without), replica=0)[1] is None


def test_synthetic_needs_no_source_and_holds_out_other_samples():
    asked = recipe(spec(format="synthetic", validation=0.1), eval_batches=3)
    train, held_out = open_loaders(asked, replica=0)
    assert held_out.steps_per_epoch == 3
    assert held_out.tokens_per_byte is None
    first = train.microbatches(0)[0][0].tolist()
    assert held_out.microbatches(0)[0][0].tolist() != first
    assert first == open_loaders(asked, replica=0)[0].microbatches(0)[0][0].tolist()


def test_seeds_and_shuffling_decide_the_order(source):
    base = recipe(source)
    tokens = [
        open_loaders(r, replica=0)[0].microbatches(0)[0][0].tolist()
        for r in (
            base,
            msgspec.structs.replace(base, seed=2),
            msgspec.structs.replace(base, data=msgspec.structs.replace(source, shuffle=False)),
        )
    ]
    assert tokens[0] != tokens[1]
    train, _ = open_samples(base)
    assert [row[0] for row in tokens[2]] == train.samples(np.array([0]))[0, :-1].tolist()


def test_a_step_costs_well_under_a_millisecond():
    """Best of many, so that a busy machine does not decide."""
    data = SyntheticDataset(seq=128, vocab=256, seed=1)
    order = SampleOrder(1 << 20, seed=1)

    class Stored:
        seq = 128

        def __len__(self):
            return 1 << 20

        def samples(self, numbers):
            return rows[numbers % 64]

    rows = data.samples(np.arange(64))
    batch = BatchSpec(global_batch=8, micro_batch=2)
    loader = Loader(Stored(), order, batch, dp=1, replica=0)
    best = 1.0
    for step in range(200):
        start = time.perf_counter()
        loader.microbatches(step)
        best = min(best, time.perf_counter() - start)
    assert best < 0.5e-3
