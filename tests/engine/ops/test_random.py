"""Counted random numbers: the same for every part of a tensor, and random enough to start from."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ops import random
from engine.ops.random import bits, box_index, fill_normal, key_of, normal, uniform

N = 1 << 16
SIGMAS = 5.0
"""How far a statistic of a fair generator may lie from its mean: 5 sigma, p = 6e-7 a check."""

KEY = key_of(1, "init", "layers.0.attn.q.weight")
INDEX = torch.arange(N)


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """A tensor's shape and a box in it."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    return shape, tuple(
        (a, draw(st.integers(a + 1, n))) for a, n in zip(starts, shape, strict=True)
    )


@given(parts(), st.integers(0, 2**31))
@settings(max_examples=200)
def test_a_box_holds_the_slice_of_the_whole_tensor(part, seed):
    shape, box = part
    key = key_of(seed, "w")
    whole = torch.empty(shape, dtype=torch.float64)
    fill_normal(whole, key, shape, tuple((0, n) for n in shape), 0.5)
    held = torch.empty([b - a for a, b in box], dtype=torch.float64)
    fill_normal(held, key, shape, box, 0.5)
    assert torch.equal(held, whole[tuple(slice(a, b) for a, b in box)])


@given(parts())
def test_positions_of_a_box_are_those_of_a_row_major_tensor(part):
    shape, box = part
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    expected = numbers[tuple(slice(a, b) for a, b in box)].reshape(-1)
    assert torch.equal(box_index(shape, box, "cpu"), expected)


def test_filling_in_blocks_changes_nothing(monkeypatch):
    shape, box = (6, 50), ((1, 5), (0, 50))
    at_once, in_blocks = torch.empty(4, 50), torch.empty(4, 50)
    fill_normal(at_once, KEY, shape, box, 1.0)
    monkeypatch.setattr(random, "_BLOCK", 7)
    fill_normal(in_blocks, KEY, shape, box, 1.0)
    assert torch.equal(at_once, in_blocks)


def test_a_view_of_a_buffer_is_filled_in_place():
    buffer = torch.zeros(30)
    fill_normal(buffer[10:22].view(3, 4), KEY, (3, 4), ((0, 3), (0, 4)), 1.0)
    assert torch.equal(buffer[:10], torch.zeros(10))
    assert torch.equal(buffer[22:], torch.zeros(8))
    assert buffer[10:22].abs().min() > 0


def test_the_bits_are_those_of_the_published_finaliser():
    """Two rounds of SplitMix64's finaliser, computed here with Python's integers."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    for index in (0, 1, 12345, 2**40 + 7):
        inner = mix((index * 0x9E3779B97F4A7C15 + KEY) % 2**64)
        expected = mix(inner ^ (KEY % 2**64))
        assert int(bits(KEY, torch.tensor([index]))) % 2**64 == expected


def test_every_bit_is_a_fair_coin():
    values = bits(KEY, INDEX)
    limit = SIGMAS * 0.5 / math.sqrt(N)
    for place in range(64):
        assert abs(float(((values >> place) & 1).double().mean()) - 0.5) < limit, place


def test_one_changed_bit_of_the_index_changes_half_of_the_bits():
    base = bits(KEY, INDEX)
    for place in range(0, 48, 5):
        changed = base ^ bits(KEY, INDEX ^ (1 << place))
        ones = sum(((changed >> k) & 1).double().mean() for k in range(64))
        assert abs(float(ones) - 32.0) < SIGMAS * 4.0 / math.sqrt(N), place


def test_neighbouring_numbers_and_keys_are_uncorrelated():
    limit = SIGMAS / math.sqrt(N)
    x = uniform(KEY, INDEX) - 0.5
    y = uniform(key_of(1, "init", "layers.1.attn.q.weight"), INDEX) - 0.5
    variance = 1 / 12
    assert abs(float((x[1:] * x[:-1]).mean())) / variance < limit
    assert abs(float((x * y).mean())) / variance < limit


def test_uniform_values_fill_the_unit_interval_evenly():
    values = uniform(KEY, INDEX)
    assert 0.0 <= float(values.min()) < 1e-3
    assert 1 - 1e-3 < float(values.max()) < 1.0
    counts = torch.histc(values, bins=64, min=0.0, max=1.0)
    chi2 = float(((counts - N / 64) ** 2 / (N / 64)).sum())
    assert abs(chi2 - 63) < SIGMAS * math.sqrt(2 * 63)


def test_normal_values_have_the_moments_of_a_normal_distribution():
    values = normal(KEY, INDEX)
    for power, expected, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        found = float((values**power).mean())
        assert abs(found - expected) < SIGMAS * math.sqrt(spread / N), power
    assert float(values.abs().max()) < 6.0
    within_one_sigma = float((values.abs() < 1).double().mean())
    assert within_one_sigma == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.01)


def test_keys_depend_on_every_part_and_on_their_borders():
    keys = {
        key_of(1, "init", "a"), key_of(2, "init", "a"), key_of(1, "init", "b"),
        key_of(1, "inita"), key_of(1, "init", "a", 0), key_of(1, "init", "a", 1), key_of(11, "a"),
        key_of(1, 1, "a"),
    }  # fmt: skip
    assert len(keys) == 8
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_nothing_is_drawn_from_the_global_generator():
    state = torch.get_rng_state()
    fill_normal(torch.empty(10), KEY, (10,), ((0, 10),), 1.0)
    assert torch.equal(state, torch.get_rng_state())
