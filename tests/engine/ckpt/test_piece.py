"""A piece and its region."""

import dataclasses

import pytest
import torch

from engine.ckpt.geometry import Region
from engine.ckpt.piece import SLOTS, Piece


def piece(**changes):
    given = {
        "name": "w", "slot": "exp_avg", "global_shape": (4, 6), "box": ((1, 3), (0, 6)),
        "flat": (2, 9), "tensor": torch.zeros(7),
    }  # fmt: skip
    return Piece(**given | changes)


def test_the_region_is_the_piece_without_its_memory():
    assert piece().region == Region((4, 6), ((1, 3), (0, 6)), (2, 9))
    assert piece().region.size == 7


def test_a_torch_size_makes_the_same_region():
    made = piece(global_shape=torch.zeros(4, 6).shape, box=[(1, 3), (0, 6)]).region
    assert made == piece().region
    assert (type(made.shape), type(made.box)) == (tuple, tuple)


def test_a_piece_shares_the_memory_of_the_state_and_cannot_be_redirected():
    state = torch.zeros(7)
    held = piece(tensor=state)
    state[3] = 5
    assert held.tensor[3] == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        held.slot = "param"


def test_slots_are_the_master_weight_and_both_moments():
    assert SLOTS == ("param", "exp_avg", "exp_avg_sq")
