"""A training state without torch, for campaigns that start hundreds of processes.

The state of a step is known by its number alone, so a checker needs nothing but the store. It is
written by the same calls as `save_checkpoint` (claim, write_part, assemble, commit) and read by the
same reader.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from engine.ckpt.catalog import catalog, read_manifest
from engine.ckpt.geometry import Region
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.piece import SLOTS
from engine.ckpt.reading import Want, fill
from engine.ckpt.safefile import Image, Planned, plan_image
from engine.ckpt.save import assemble, claim, commit, write_part
from engine.ckpt.store import open_store
from engine.ckpt.verify import verify

WORLD = 2
ROWS = 64


def tensors(columns: int) -> dict[str, tuple[int, ...]]:
    """Two matrices and a vector."""
    return {"embed.weight": (ROWS, columns), "layers.0.o.weight": (ROWS, columns // 2),
            "layers.0.norm.weight": (columns,)}  # fmt: skip


def planned(rank: int, columns: int) -> list[Planned]:
    """Half of every tensor and slot, by rows or elements."""
    found = []
    for name, shape in tensors(columns).items():
        size = int(np.prod(shape))
        flat = (size * rank // WORLD, size * (rank + 1) // WORLD)
        box = tuple((0, n) for n in shape)
        found += [Planned(name, slot, "F32", Region(shape, box, flat)) for slot in SLOTS]
    return found


def values(step: int, piece: Planned) -> np.ndarray:
    """What a piece holds after a step: no two steps, tensors or elements are alike."""
    lo, hi = piece.region.flat
    seed = step * 1009 + SLOTS.index(piece.slot) * 101 + len(piece.name)
    return (np.arange(lo, hi, dtype=np.float64) * 0.37 + seed).astype(np.float32)


def image_of(rank: int, columns: int) -> Image:
    """The rank's file before it is written."""
    return plan_image(planned(rank, columns), {"format": "msctl", "rank": str(rank)})


def save(root: str | Path, step: int, columns: int) -> str:
    """Write and commit a checkpoint as all ranks together."""
    store = open_store(root)
    name = claim(store, step)
    parts = []
    for rank in range(WORLD):
        image = image_of(rank, columns)
        views = (values(step, piece).view(np.uint8).data for piece in image.planned)
        parts.append(write_part(store, name, image, views, rank=rank))
    commit(store, name, assemble(CheckpointMeta(step=step), parts, WORLD))
    return name


def is_exact(root: str | Path, name: str, step: int, columns: int) -> bool:
    """Whether every element loads as it was saved; raises CheckpointError on damage."""
    store = open_store(root)
    manifest = read_manifest(store, name)
    wants = []
    for rank in range(WORLD):
        for piece in planned(rank, columns):
            out = np.zeros(piece.bytes, np.uint8)
            wants.append(Want(piece.name, piece.slot, "F32", piece.region, out))
    fill(store, name, manifest, wants, threads=1)
    every = [piece for rank in range(WORLD) for piece in planned(rank, columns)]
    return manifest.meta.step == step and all(
        np.array_equal(want.out.view(np.float32), values(step, piece))
        for want, piece in zip(wants, every, strict=True)
    )


def judge(root: str | Path, reported: set[int], columns: int) -> set[int]:
    """Invariants I1 to I3: what was reported is there, and all that is listed loads as saved."""
    infos = [info for info in catalog(root) if info.state == "committed"]
    steps = {info.step for info in infos}
    assert reported <= steps, f"reported {sorted(reported)}, listed {sorted(steps)}"
    for info in infos:
        assert verify(f"{root}/{info.name}", threads=1).ok, f"{info.name} is damaged"
        assert is_exact(root, info.name, info.step, columns), f"{info.name} is not what was saved"
    return steps
