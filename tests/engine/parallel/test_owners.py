"""Which part of which tensor a shard holds; that sums over owners count every element once."""

import pytest
import torch

from bench.case import Ranks
from bench.ranks import World
from engine.comm.world import Rendezvous, end_world
from engine.parallel.owners import OwnerSum, parts_of


def sums(rank: int, meet: Rendezvous, args: dict) -> list[dict[str, float]]:
    """For each layout, what OwnerSum makes of ones for every element, by tensor."""
    found = []
    ranks = Ranks(rank, meet, 4)
    for layout in args["layouts"]:
        trainer = ranks.trainer({"layout": layout, "shape": "gpt"})
        counted: dict[str, float] = {}
        for unit in trainer.engine.all_units():
            parts = parts_of(unit.shard)
            lengths = [[float(part.end - part.begin)] for part in parts]
            total = OwnerSum(unit.shard)(torch.tensor(lengths, dtype=torch.float64))
            for weight, number in zip(
                unit.shard.flat.weights, total.flatten().tolist(), strict=True
            ):
                size = 1
                for extent in weight.info.shape:
                    size *= extent
                counted[weight.info.name] = number / size
        found.append(counted)
    end_world()
    return found


@pytest.mark.multi
def test_every_element_of_every_tensor_is_counted_once(world: World) -> None:
    layouts = [
        {"tp": 4}, {"dp": 4, "zero": 2}, {"dp": 4, "zero": 0}, {"tp": 2, "dp": 2, "zero": 1},
        {"pp": 2, "tp": 2}, {"pp": 2, "dp": 2}, {"tp": 2, "dp": 2, "sequence_parallel": False},
    ]  # fmt: skip
    for result in world.run(f"{__name__}:sums", 4, {"layouts": layouts}):
        for layout, counted in zip(layouts, result, strict=True):
            assert counted, layout
            assert set(counted.values()) == {1.0}, (layout, counted)
