"""GEMMs in pieces: the same numbers as whole ones, and pieces that do not fit are left whole."""

import pytest

from bench.ranks import World
from engine.events.writer import EventWriter
from engine.parallel.chunked import Chunker
from tests.engine.parallel.alone import axis_of
from tests.engine.parallel.twins import on_ranks

TOLERANCE = 1e-12


@pytest.mark.multi
@pytest.mark.parametrize("pieces", [2, 4])
def test_twins_in_pieces_compute_what_whole_modules_do(world: World, pieces):
    args = {"tp": 2, "sequence_parallel": True, "pieces": pieces}
    for found in world.run(f"{on_ranks.__module__}:on_ranks", 2, args):
        assert max(found.values()) < TOLERANCE, found


@pytest.mark.multi
def test_pieces_that_do_not_divide_fall_back_to_whole_gemms(world: World):
    args = {"tp": 2, "sequence_parallel": True, "pieces": 3}  # of 4 positions a rank
    for found in world.run(f"{on_ranks.__module__}:on_ranks", 2, args):
        assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize(
    ("pieces", "s_local", "fits"), [(1, 8, False), (2, 8, True), (3, 8, False), (8, 8, True)]
)
def test_pieces_must_divide_a_ranks_part_of_the_sequence(pieces, s_local, fits):
    chunker = Chunker(axis_of().group, pieces=pieces, ahead=True, events=EventWriter(None, 0))
    assert chunker.fits(s_local) == fits
