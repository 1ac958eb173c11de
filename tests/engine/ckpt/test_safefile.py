"""Shard files against the safetensors library, and headers that lie."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from engine.ckpt.geometry import Region, whole
from engine.ckpt.manifest import ITEM_BYTES
from engine.ckpt.safefile import (
    HEADER_LIMIT,
    PAGE,
    Planned,
    Stored,
    header_length,
    parse_header,
    plan_image,
)
from engine.errors import CheckpointError

BYTE = Planned("b", "param", "U8", whole((3,)))
WIDE = Planned("w", "param", "F64", whole((2, 2)))
HALF = Planned("h", "exp_avg", "F16", Region((4, 4), ((1, 3), (0, 4)), (2, 7)))


def raw(table, data=b""):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text, len(text) + 8 + len(data)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_the_library_reads_what_is_planned():
    image = plan_image([BYTE, HALF, WIDE], {"rank": "7"})
    assert [p.name for p in image.planned] == ["w", "h", "b"]
    assert image.order == (2, 1, 0)
    assert len(image.header) == PAGE
    assert image.offsets == (PAGE, PAGE + 32, PAGE + 32 + 10)
    assert image.bytes == PAGE + 32 + 10 + 3
    data = np.arange(45, dtype=np.uint8).tobytes()
    tensors = load(image.header + data)
    assert tensors["param/w"].shape == (2, 2)
    assert tensors["exp_avg/h"].shape == (5,)  # a range of a box has no shape of its own
    assert tensors["param/w"].tobytes() + tensors["exp_avg/h"].tobytes() == data[:42]
    assert tensors["param/b"].tobytes() == data[42:]
    stored, metadata = parse_header(image.header, image.bytes, "here")
    assert metadata == {"rank": "7"}
    assert stored["exp_avg/h"] == Stored("F16", (5,), PAGE + 32, PAGE + 42)


@given(st.lists(st.tuples(st.sampled_from(sorted(ITEM_BYTES)), st.integers(0, 9)), max_size=8))
def test_images_are_aligned_without_holes_and_read_back(kinds):
    pieces = [
        Planned(f"t{i}", "param", dtype, whole((count,))) for i, (dtype, count) in enumerate(kinds)
    ]
    image = plan_image(pieces, {})
    assert len(image.header) % PAGE == 0
    assert header_length(image.header[:8], image.bytes, "") == len(image.header)
    assert [image.planned[i] for i in range(len(pieces))] == [pieces[i] for i in image.order]
    stored, _ = parse_header(image.header, image.bytes, "")
    for piece, at in zip(image.planned, image.offsets, strict=True):
        assert at % ITEM_BYTES[piece.dtype] == 0
        assert stored[f"param/{piece.name}"] == Stored(
            piece.dtype, piece.region.shape, at, at + piece.bytes
        )


def test_a_long_header_takes_another_page():
    image = plan_image([Planned("n" * PAGE, "param", "U8", whole((1,)))], {})
    assert len(image.header) == 2 * PAGE
    assert load(image.header + b"\7")["param/" + "n" * PAGE] == 7


def test_two_ranges_of_a_tensor_have_two_keys_and_no_third_begins_with_the_second():
    low, high = (Planned("w", "param", "U8", Region((4,), ((0, 4),), r)) for r in ((0, 2), (2, 4)))
    stored, _ = parse_header((image := plan_image([low, high], {})).header, image.bytes, "")
    assert list(stored) == ["param/w", "param/w@2"]
    with pytest.raises(CheckpointError, match=r"w \(param\): two pieces begin at element 2"):
        plan_image([low, high, high], {})


def test_files_of_the_library_are_read():
    data = save({"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.zeros(2)}, {"k": "v"})
    length = header_length(data[:8], len(data), "")
    stored, metadata = parse_header(data[:length], len(data), "")
    assert metadata == {"k": "v"}
    a = stored["a"]
    assert (a.dtype, a.shape, a.end - a.start) == ("I32", (2, 3), 24)
    assert np.frombuffer(data[a.start : a.end], np.int32).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"", 0),
        (b"\x01\0\0\0\0\0\0", 7),
        ((5).to_bytes(8, "little"), 12),
        ((HEADER_LIMIT - 7).to_bytes(8, "little"), 1 << 40),
        (b"\xff" * 8, 1 << 40),
    ],
)
def test_a_header_longer_than_the_file_or_the_limit_is_not_read(data, size):
    with pytest.raises(CheckpointError, match=f"here: header of .* in a file of {size}"):
        header_length(data, size, "here")


def test_headers_up_to_the_limit_and_the_end_of_the_file_are():
    assert header_length((5).to_bytes(8, "little"), 13, "") == 13
    most = (HEADER_LIMIT - 8).to_bytes(8, "little")
    assert header_length(most, HEADER_LIMIT, "") == HEADER_LIMIT


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        ([], "not a table"),
        ({"__metadata__": {"a": 1}}, "table of strings"),
        ({"__metadata__": []}, "table of strings"),
        ({"a": 1}, "entry 'a' is malformed"),
        ({"a": {}}, "entry 'a' is malformed"),
        ({"a": entry(dtype=[])}, "entry 'a' is malformed"),
        ({"a": entry(shape=None)}, "entry 'a' is malformed"),
        ({"a": entry(shape=[-2, -2])}, "entry 'a' is malformed"),
        ({"a": entry(shape=[4.0])}, "entry 'a' is malformed"),
        ({"a": entry(shape=[True, 4])}, "entry 'a' is malformed"),
        ({"a": entry(shape=[1] * 8 + [4])}, "entry 'a' is malformed"),
        ({"a": entry(shape=[2**63], offsets=[0, 2**63])}, "entry 'a' is malformed"),
        ({"a": entry(shape=[10**4300 - 1], offsets=[0, 10**4300 - 1])}, "entry 'a' is malformed"),
        ({"a": entry(offsets=[0])}, "entry 'a' is malformed"),
        ({"a": entry(offsets=[0, 2, 4])}, "entry 'a' is malformed"),
        ({"a": entry(offsets=[-4, 0])}, "entry 'a' is malformed"),
        ({"a": entry(dtype="F8")}, "dtype 'F8', known are F64"),
        ({"a": entry(dtype="F16")}, r"4 bytes for shape \[4\] of F16"),
        ({"a": entry(offsets=[4, 0])}, "-4 bytes for shape"),
        ({"a": entry(shape=[2**32, 2**32])}, "4 bytes for shape"),
        ({"a": entry(offsets=[1, 5])}, "hole or overlap"),
        ({"a": entry(), "b": entry()}, "hole or overlap"),
        ({"a": entry(), "b": entry(offsets=[5, 9])}, "hole or overlap"),
        ({"a": entry(shape=[3], offsets=[0, 3])}, "data ends at byte"),
        ({"a": entry(shape=[5], offsets=[0, 5])}, "data ends at byte"),
        ({}, "data ends at byte"),
    ],
)
def test_no_number_in_a_header_is_trusted(table, says):
    header, size = raw(table, bytes(4))
    with pytest.raises(CheckpointError, match=says):
        parse_header(header, size, "here")


def test_eight_dims_and_empty_tensors_are_fine():
    table = {"a": entry(shape=[1] * 7 + [4]), "e": entry(shape=[0, 9], offsets=[4, 4])}
    header, size = raw(table, bytes(4))
    stored, _ = parse_header(header, size, "here")
    assert stored["a"].start == len(header)
    assert stored["e"] == Stored("U8", (0, 9), size, size)
