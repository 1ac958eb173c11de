"""Save under every layout of up to eight ranks, load under every other: bitwise equal in float64.

    python reshard_pairs.py [--offline] [--only N] [--first N]

The pieces are those of the engine itself, built rank by rank without processes: weights and both
moments, tied embedding, ZeRO off and on, chunks in one and two rounds of the pipeline. Every
element is filled with a number of its own. `--offline` also rewrites each checkpoint for each other
layout (`msctl ckpt reshard`) and loads what was written under its own. Prints one line per layout
saved and the number of pairs that were not equal.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import SLOTS, Piece
from engine.ckpt.reshard import reshard
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.save import save_checkpoint
from engine.device import CpuDevice
from engine.events.writer import EventWriter
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, Recipe, TrainSpec
from engine.train.build import build_engine
from engine.train.state import pieces_to_load, pieces_to_save
from tests.engine.ckpt.state import Ranks
from tests.engine.parallel.alone import mesh_of

WORLD = 8
MODEL = ModelSpec(layers=8, hidden=16, heads=8, vocab=32, seq=8, tied=True)


def layouts() -> list[ParallelLayout]:
    """All that cut the model, of at most eight ranks."""
    found = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8):
            for dp in range(1, WORLD // (tp * pp) + 1):
                for vpp in (1, 2) if 1 < pp < 8 else (1,):
                    for zero in (0, 2) if dp > 1 else (2,):
                        found.append(ParallelLayout(tp=tp, pp=pp, vpp=vpp, dp=dp, zero=zero))
    return found


class Truth:
    """What every element of the state must be."""

    def __init__(self) -> None:
        self._whole: dict[tuple[str, str], Tensor] = {}

    def of(self, piece: Piece) -> Tensor:
        """The values of a piece."""
        key = (piece.name, piece.slot)
        if key not in self._whole:
            rng = torch.Generator().manual_seed(len(self._whole))
            whole = torch.rand(piece.global_shape, dtype=torch.float64, generator=rng)
            self._whole[key] = whole
        box = tuple(slice(lo, hi) for lo, hi in piece.box)
        return self._whole[key][box].reshape(-1)[slice(*piece.flat)]


def engines(layout: ParallelLayout) -> tuple[list[list[Piece]], list[list[Piece]]]:
    """What each rank saves, and what each rank loads."""
    # enough micro-batches for any order of the pipeline
    count = 2 * layout.pp * layout.dp
    recipe = Recipe(
        name="pairs", model=MODEL, layout=layout,
        batch=BatchSpec(global_batch=count, micro_batch=1),
        train=TrainSpec(precision="fp64", threads=1),
    )  # fmt: skip
    events, device = EventWriter(None, 0), CpuDevice()
    made = [
        build_engine(recipe, mesh_of(layout, r), device, events) for r in range(layout.world_size)
    ]
    return [pieces_to_save(e) for e in made], [pieces_to_load(e) for e in made]


def wrong(folder: Path, ranks: list[list[Piece]], truth: Truth) -> int:
    """Pieces that are not what they should be after loading, over all ranks."""
    bad = 0
    for pieces in ranks:
        for piece in pieces:
            piece.tensor.fill_(-1.0)
        load_checkpoint(folder, pieces)
        bad += sum(not torch.equal(p.tensor.reshape(-1), truth.of(p)) for p in pieces)
    return bad


def save(folder: Path, pieces: list[list[Piece]], layout: ParallelLayout, truth: Truth) -> None:
    """A checkpoint by all ranks of a layout, as threads."""
    ranks = Ranks(len(pieces))

    def work(rank: int, gather: object) -> str:
        for piece in pieces[rank]:
            piece.tensor.copy_(truth.of(piece).view_as(piece.tensor))
        return save_checkpoint(
            folder, pieces[rank], meta=CheckpointMeta(step=1, layout=layout), rank=rank,
            world=len(pieces), gather=gather, barrier=lambda: None,
        )  # type: ignore[arg-type] # fmt: skip

    ranks.run(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offline", action="store_true", help="also rewrite for each layout")
    parser.add_argument("--only", type=int, help="every Nth layout")
    parser.add_argument("--first", type=int, default=0, help="go on with this source, from 0")
    given = parser.parse_args()
    chosen, truth = layouts()[:: given.only or 1], Truth()
    built = {layout: engines(layout) for layout in chosen}
    slots = {p.slot for _, ranks in built.values() for pieces in ranks for p in pieces}
    assert slots == set(SLOTS), slots
    bad = pairs = 0
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="reshard-pairs-") as place:
        for number, source in enumerate(chosen[given.first :]):
            folder = Path(place) / f"{number}"
            save(folder, built[source][0], source, truth)
            unequal = 0
            for target in chosen:
                unequal += wrong(folder, built[target][1], truth) > 0
                pairs += 1
                if given.offline:
                    out = Path(place) / "rewritten"
                    reshard(folder, out, target)
                    unequal += wrong(out, built[target][1], truth) > 0
                    for file in sorted(out.rglob("*"), reverse=True):
                        file.rmdir() if file.is_dir() else file.unlink()
            bad += unequal
            print(f"tp {source.tp} pp {source.pp} vpp {source.vpp} dp {source.dp} zero "
                  f"{source.zero}: {unequal} of {len(chosen)} unequal", flush=True)  # fmt: skip
    print(f"{pairs} pairs of {len(chosen)} layouts, {bad} unequal, "
          f"{time.perf_counter() - begin:.0f} s")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
