#!/usr/bin/env python3
"""Damage a checkpoint in every way, many times: verify must find it and load refuse it.

    python damage.py --count 1000

One round flips a bit, cuts or lengthens a file, loses a page or a whole file, at a random place of
any file of the newest of two checkpoints. `verify` must say so, and for damage within data name the
file, the chunk and the tensors that lie there (worked out here from the safetensors header alone);
`load_checkpoint` must fall back to the older checkpoint, bit for bit. One JSON line of totals.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from plain_state import WORLD, planned, save, values

from engine.ckpt.manifest import CHUNK_BYTES
from engine.ckpt.piece import Piece
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.verify import verify

KINDS = ("flip", "flip", "flip", "cut", "page", "longer", "gone")
PAGE = 4096


def damage(path: Path, kind: str, chance: random.Random) -> tuple[int, int] | None:
    """Change a file; returns the byte range that differs if its size is as before."""
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        return at, at + 1
    if kind == "page":
        lo = at // PAGE * PAGE
        hi = min(len(data), lo + PAGE)
        if not any(data[lo:hi]):
            data[lo:hi] = b"\xff" * (hi - lo)
        else:
            data[lo:hi] = bytes(hi - lo)
        path.write_bytes(data)
        return lo, hi
    if kind == "gone":
        path.unlink()
    elif kind == "longer":
        path.write_bytes(bytes(data) + b"\0" * chance.randrange(1, 3 * PAGE))
    else:
        path.write_bytes(data[:at])
    return None


def hit_tensors(original: bytes, lo: int, hi: int) -> set[str]:
    """Tensors of a safetensors file that have bytes in a range, by its own header."""
    length = 8 + int.from_bytes(original[:8], "little")
    table = json.loads(original[8:length])
    found = {"the header"} if lo < length else set()
    for key, entry in table.items():
        if key != "__metadata__":
            slot, _, name = key.partition("/")
            begin, end = (length + offset for offset in entry["data_offsets"])
            if begin < hi and end > lo:
                found.add(f"{name.partition('@')[0]} ({slot})")
    return found


def pieces(rank: int, columns: int) -> list[Piece]:
    """Empty memory for a rank."""
    return [
        Piece(name=p.name, slot=p.slot, global_shape=p.region.shape, box=p.region.box,
              flat=p.region.flat, tensor=torch.full((p.region.size,), -1.0))
        for p in planned(rank, columns)
    ]  # fmt: skip


def falls_back(root: Path, columns: int, *, to: int) -> bool:
    """Whether loading the whole state gives the older step, exactly."""
    empty = [piece for rank in range(WORLD) for piece in pieces(rank, columns)]
    plans = [plan for rank in range(WORLD) for plan in planned(rank, columns)]
    if load_checkpoint(root, empty).step != to:
        return False
    return all(
        torch.equal(piece.tensor, torch.from_numpy(values(to, plan)))
        for piece, plan in zip(empty, plans, strict=True)
    )


def one_round(root: Path, name: str, columns: int, chance: random.Random) -> tuple[str, list[str]]:
    """Damage, look, repair; returns what was done and what was not found."""
    path = chance.choice(sorted(p for p in (root / name).iterdir() if p.name != "ATTEMPT"))
    kind = chance.choice(KINDS)
    original = path.read_bytes()
    span = damage(path, kind, chance)
    missed = []
    try:
        if path.name == "COMMITTED" and kind == "gone":
            found = True  # without its marker it is no checkpoint: listed as partial
        else:
            report = verify(root / name, threads=1)
            found = not report.ok
            if found and span and path.suffix == ".safetensors":
                chunk = span[0] // CHUNK_BYTES
                named = {t for d in report.damage if d.chunk == chunk for t in d.tensors}
                files = {d.file for d in report.damage}
                if files != {path.name} or not hit_tensors(original, *span) <= named:
                    missed.append(f"verify names {files}, {named}")
        if not found:
            missed.append("verify finds nothing")
        if not falls_back(root, columns, to=1):
            missed.append("load does not fall back")
    finally:
        path.write_bytes(original)
    return f"{kind} {path.suffix or path.name}", [f"{kind} {path.name} {span}: {m}" for m in missed]


def campaign(root: Path, count: int, columns: int, seed: int) -> dict[str, object]:
    """All rounds; the totals."""
    chance = random.Random(seed)
    save(root, 1, columns)
    name = save(root, 2, columns)
    begin, done, missed = time.perf_counter(), Counter(), []
    for _ in range(count):
        what, wrong = one_round(root, name, columns, chance)
        done[what] += 1
        missed += wrong
    assert verify(root / name).ok, "the rounds repair what they damage"
    return {
        "rounds": count, "found": count - len({m.split(":")[0] for m in missed}),
        "missed": missed[:10], "kinds": dict(sorted(done.items())),
        "file_bytes": (root / name / "rank-00000.safetensors").stat().st_size,
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=24000, help="size of the state")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where to write; default: a temporary folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # every round warns of the damage that it made
    root = Path(tempfile.mkdtemp(prefix="damage-", dir=args.dir))
    try:
        total = campaign(root, args.count, args.columns, args.seed)
        print(json.dumps(total))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if total["missed"] else 0)


if __name__ == "__main__":
    main()
