"""Pickles of strangers: plain containers come back equal, all else is refused before it runs."""

import pickle
import pickletools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.diagnose.readers import unpickle
from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.unpickle import load_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=40,
)  # fmt: skip


@given(PLAIN, st.integers(0, 5))
def test_plain_containers_come_back_equal(value, protocol):
    assert load_plain(pickle.dumps(value, protocol)) == value


@given(PLAIN, st.integers(2, 5))
def test_binary_pickles_take_the_fast_check(value, protocol):
    assert unpickle._is_plain(pickle.dumps(value, protocol))


def test_thousands_of_remembered_values_take_the_fast_check():
    value = [{"name": f"call {n}", "state": "completed"} for n in range(2000)]
    data = pickle.dumps(value, 2)
    assert unpickle._is_plain(data)
    assert load_plain(data) == value


@given(st.data())
def test_what_the_fast_check_lets_through_holds_only_allowed_instructions(data):
    good = pickle.dumps(data.draw(PLAIN), data.draw(st.integers(2, 5)))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(min_size=1, max_size=3)) + good[at + 1 :]
    if not unpickle._is_plain(bad):
        return
    try:
        names = {opcode.name for opcode, _, _ in pickletools.genops(bad)}
    except ValueError:  # text that is no UTF-8: the reader says so
        return
    assert names <= unpickle._ALLOWED


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r" + struct.pack("<I", 1 << 31) + b".",
        b"\x80\x02]p2147483648\n.",
        b"]p-1\n.",
    ],
)
def test_a_far_place_in_the_memo_is_refused(data):
    """Python's reader would make room for all places before it: 32 GiB for six bytes."""
    with pytest.raises(FileFault, match="room for"):
        load_plain(data)


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - {ord(".")}))
def test_every_instruction_alone_is_read_or_refused(opcode):
    with pytest.raises(FileFault):
        load_plain(bytes([0x80, 2, opcode]) + b"\0" * 8 + b"x\ny\n.")
