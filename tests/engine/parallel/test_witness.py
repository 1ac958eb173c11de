"""Digests: equal for equal bits, never for one bit flipped; notes only while it listens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.witness import Witness, digest

TYPES = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


@given(st.sampled_from(list(TYPES)), st.integers(1, 300), st.integers(0, 2**31), st.data())
def test_one_flipped_bit_is_always_seen(dtype, size, seed, data):
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)
    before = digest(values)
    assert digest(values.clone()) == before
    bits = values.view(TYPES[dtype])
    width = 8 * values.element_size()
    bit = data.draw(st.integers(0, width - 1))
    bits[data.draw(st.integers(0, size - 1))] ^= 1 << bit if bit < width - 1 else -(1 << bit)
    assert digest(values) != before


def test_order_counts_and_so_does_every_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.parallel.witness._PIECE", 4)
    values = torch.arange(10.0)
    assert digest(values) != digest(values.flip(0))
    swapped = torch.cat([values[4:8], values[:4], values[8:]])
    assert digest(values) != digest(swapped)
    assert digest(torch.stack([values, values], 1)[:, 0]) == digest(values), "layout is no value"


def test_notes_are_taken_only_while_it_listens():
    witness = Witness()
    witness.see(torch.ones(2))
    with witness.listening() as notes:
        witness.enter(3)
        witness.see(torch.ones(2))
        witness.see(torch.zeros(2))
        witness.enter(4)
        witness.see(torch.ones(2))
    witness.see(torch.ones(2))
    assert [note.order for note in notes] == [(3, 0), (3, 1), (4, 0)]
    assert notes[0].digest == notes[2].digest != notes[1].digest
