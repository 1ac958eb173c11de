"""The state that is saved: every element of every tensor once, whatever the layout."""

import math
import zlib

import pytest
import torch

from bench.case import Ranks
from bench.ranks import World
from engine.ckpt.piece import SLOTS, Piece
from engine.comm.world import Rendezvous, end_world
from engine.spec.layout import ParallelLayout
from engine.train.state import loaded, pieces_to_load, pieces_to_save, share_copies
from tests.engine.train.single import engine_of, recipe

MADE = recipe(model={"layers": 4}, batch={"global_batch": 8, "micro_batch": 1})
LAYOUTS = [
    ParallelLayout(), ParallelLayout(tp=2), ParallelLayout(tp=2, sequence_parallel=False),
    ParallelLayout(dp=3, zero=0), ParallelLayout(dp=4, zero=1), ParallelLayout(dp=2, zero=2),
    ParallelLayout(pp=2), ParallelLayout(pp=2, vpp=2), ParallelLayout(tp=2, pp=2, vpp=2, dp=2),
]  # fmt: skip


def counts(pieces: list[Piece]) -> dict[tuple[str, str], torch.Tensor]:
    """How often each element of each tensor and slot occurs."""
    found: dict[tuple[str, str], torch.Tensor] = {}
    for piece in pieces:
        whole = found.setdefault((piece.name, piece.slot), torch.zeros(piece.global_shape))
        box = torch.zeros([b - a for a, b in piece.box])
        box.view(-1)[slice(*piece.flat)] = 1
        whole[tuple(slice(a, b) for a, b in piece.box)] += box
    return found


def made_for(layout: ParallelLayout):
    per_step = 8 * layout.dp
    return recipe(model={"layers": 4}, batch={"global_batch": per_step, "micro_batch": 1})


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_over_all_ranks_each_element_is_saved_once(layout):
    made = made_for(layout)
    engines = [engine_of(made, layout, rank) for rank in range(layout.world_size)]
    found = counts([piece for engine in engines for piece in pieces_to_save(engine)])
    assert {slot for _, slot in found} == set(SLOTS)
    for key, count in found.items():
        assert bool((count == 1).all()), key
    for slot in SLOTS:
        assert sum(c.numel() for (_, s), c in found.items() if s == slot) == made.model.params


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_rank_loads_all_that_it_works_on(layout):
    made = made_for(layout)
    for rank in range(layout.world_size):
        engine = engine_of(made, layout, rank)
        pieces = pieces_to_load(engine)
        elements = sum(p.tensor.numel() for p in pieces if p.slot == "param")
        owned = sum(b - a for u in engine.all_units() for _, a, b in u.shard.owned())
        assert elements == owned
        saved = {(p.name, p.slot, p.flat) for p in pieces_to_save(engine)}
        assert saved <= {(p.name, p.slot, p.flat) for p in pieces}


def test_pieces_are_views_of_the_live_state():
    engine = engine_of(MADE)
    for piece in pieces_to_load(engine):
        piece.tensor.fill_(7.0)
    for unit in engine.all_units():
        flat = unit.shard.flat
        assert bool((flat.data[: flat.numel] == 7.0).all())
        for state in unit.optimizer.state.values():
            assert bool((state[: flat.numel] == 7.0).all())


def test_after_a_load_parameters_are_gathered_anew():
    engine = engine_of(MADE)
    loaded(engine)
    for unit in engine.all_units():
        with pytest.raises(AssertionError, match="stale parameters"):
            unit.shard.finish_unshard()
        unit.shard.start_unshard()
        unit.shard.finish_unshard()


def written(piece: Piece) -> torch.Tensor:
    """What belongs into a piece: a number for each element of each tensor and slot."""
    whole = torch.arange(math.prod(piece.global_shape)).view(piece.global_shape)
    whole = whole + 10_000 * zlib.crc32(f"{piece.name} {piece.slot}".encode()) % 1_000_003
    mine = whole[tuple(slice(a, b) for a, b in piece.box)].reshape(-1)
    return mine[slice(*piece.flat)].to(piece.tensor.dtype)


def copies(rank: int, meet: Rendezvous, args: dict) -> list[list[int]]:
    """For each layout: pieces that were a copy, and those that are wrong after sharing."""
    found = []
    ranks = Ranks(rank, meet, 4)
    for layout in args["layouts"]:
        engine = ranks.trainer({"layout": layout, "shape": "gpt"}).engine
        pieces, own = pieces_to_load(engine), pieces_to_save(engine)
        for piece in pieces:
            piece.tensor.fill_(-1.0)
        for piece in own:
            piece.tensor.copy_(written(piece))
        share_copies(engine)
        wrong = sum(not torch.equal(piece.tensor, written(piece)) for piece in pieces)
        found.append([len(pieces) - len(own), wrong])
    end_world()
    return found


@pytest.mark.multi
def test_copies_are_filled_by_their_owners(world: World) -> None:
    layouts = [
        {"tp": 4}, {"pp": 2, "tp": 2}, {"pp": 2, "dp": 2, "zero": 1}, {"dp": 4, "zero": 0},
        {"pp": 2, "dp": 2, "zero": 0}, {"tp": 2, "dp": 2, "zero": 0}, {"pp": 4},
    ]  # fmt: skip
    results = world.run(f"{__name__}:copies", 4, {"layouts": layouts})
    for number, layout in enumerate(layouts):
        assert sum(result[number][0] for result in results) > 0, f"{layout} has no copies"
        assert [result[number][1] for result in results] == [0] * 4, layout
