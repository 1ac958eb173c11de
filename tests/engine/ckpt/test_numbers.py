"""Element types by their definitions, conversions against torch and against exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.ckpt import numbers
from engine.ckpt.manifest import ITEM_BYTES
from engine.ckpt.numbers import NUMPY, convert, item_bytes, typed
from engine.errors import CheckpointError

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def as_numpy(tensor):
    same = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    return same.numpy()


def exact(word):
    """A finite bfloat16 word as a fraction: sign, 8 bits of exponent, 7 of mantissa."""
    sign, exponent, mantissa = word >> 15, word >> 7 & 255, word & 127
    size = Fraction(mantissa + (128 if exponent else 0), 128) * Fraction(2) ** (
        max(exponent, 1) - 127
    )
    return -size if sign else size


@pytest.mark.parametrize("have", TORCH)
@pytest.mark.parametrize("want", TORCH)
def test_conversions_are_those_of_torch(have, want):
    source = torch.tensor([0.0, -0.0, 1.0, -2.5, 1 / 3, 65504, 1e38, 1e-40, np.inf, -np.inf])
    source = source.to(TORCH[have]).reshape(2, 5)
    got = convert(as_numpy(source), have, want)
    assert got.shape == (2, 5)
    assert got.dtype == NUMPY[want]
    assert got.tobytes() == as_numpy(source.to(TORCH[want])).tobytes()


def test_every_bfloat16_word_survives_the_way_to_a_wider_type_and_back():
    words = np.arange(1 << 16, dtype=np.uint16)
    numbers_only = words[(words & 0x7FFF) <= 0x7F80]
    for wide in ("F32", "F64"):
        assert np.array_equal(
            convert(convert(numbers_only, "BF16", wide), wide, "BF16"), numbers_only
        )


def test_what_is_no_number_stays_none():
    quiet = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    words = convert(quiet, "F32", "BF16")
    assert all((int(w) & 0x7F80) == 0x7F80 and int(w) & 0x7F for w in words)
    assert [int(w) >> 15 for w in words] == [0, 0, 1]
    (double,) = convert(np.array([np.nan]), "F64", "BF16")
    assert int(double) & 0x7FFF > 0x7F80


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (1 + 2**-8, 0x3F80),  # a tie goes to the even neighbour
        (1 + 3 * 2**-8, 0x3F82),
        (1 + 2**-8 + 2**-40, 0x3F81),  # just above a tie, which a float32 cannot tell
        (1 + 3 * 2**-8 - 2**-40, 0x3F81),
        (-(1 + 2**-8 + 2**-40), 0xBF81),
        (2.0**128, 0x7F80),
        (2.0**127 * (2 - 2**-8), 0x7F80),  # half a step beyond the largest
        (2.0**127 * (2 - 2**-8) - 2.0**90, 0x7F7F),
        (2.0**-134, 0x0000),  # half of the smallest
        (2.0**-134 * (1 + 2**-30), 0x0001),
    ],
)
def test_double_precision_is_rounded_once(value, word):
    assert int(convert(np.array([value]), "F64", "BF16")[0]) == word


@given(st.floats(-1e38, 1e38))
def test_no_bfloat16_is_nearer(value):
    word = int(convert(np.array([value]), "F64", "BF16")[0])
    off = abs(exact(word) - Fraction(value))
    for other in (word - 1, word + 1):
        if other & 0x7FFF and 0 <= other & 0x7FFF < 0x7F80:
            further = abs(exact(other & 0xFFFF) - Fraction(value))
            assert off < further or (off == further and word % 2 == 0)


def test_long_arrays_go_block_by_block(monkeypatch):
    monkeypatch.setattr(numbers, "_BLOCK", 3)
    source = np.arange(8, dtype=np.float32)
    assert np.array_equal(convert(source, "F32", "F64"), np.arange(8.0))
    assert np.array_equal(convert(convert(source, "F32", "BF16"), "BF16", "F32"), source)


def test_the_same_type_is_not_copied_and_others_are_refused():
    source = np.arange(3)
    assert convert(source, "I64", "I64") is source
    for have, want in (("I64", "F32"), ("F32", "U8"), ("F32", "F8")):
        with pytest.raises(CheckpointError, match=f"{have} is not converted to {want}"):
            convert(source, have, want)


def test_a_transposed_view_is_converted_in_its_own_order():
    source = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(convert(source, "F32", "F64"), [[0, 3], [1, 4], [2, 5]])


def test_bytes_get_type_and_shape():
    data = np.frombuffer(np.arange(6, dtype="<i4").tobytes(), np.uint8)
    assert np.array_equal(typed(data, "I32", (3, 2)), [[0, 1], [2, 3], [4, 5]])
    assert typed(data[:8], "F64", ()).shape == ()
    assert {name: np.dtype(kind).itemsize for name, kind in NUMPY.items()} == ITEM_BYTES
    assert [item_bytes(name) for name in ("F64", "BF16", "U8")] == [8, 2, 1]
