"""What a launcher knows of a foreign job: degrees, rank order, members of groups.

Found beside the other inputs as `job.json` ({world_size, tp, pp, dp, order}) and `groups/` (one
JSON file a rank: group name -> desc, ranks). Both are optional; without them only what dumps
tell is known.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.diagnose.readers.files import FileFault, read_limited

_LIMIT = 16 << 20
WORLD_LIMIT = 1 << 20
"""Ranks of the largest job that is believed."""


class Job(NamedTuple):
    """Degrees by axis in the order in which ranks run, fastest first; empty if unknown."""

    name: str
    world: int
    degrees: tuple[tuple[str, int], ...]
    members: Mapping[str, tuple[int, ...]]
    """Group name -> ranks."""

    def place(self, axis: str, rank: int) -> int:
        """Position of a rank on an axis; 0 on an axis that is unknown."""
        for name, degree in self.degrees:
            if name == axis:
                return rank % degree
            rank //= degree
        return 0

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """Ranks that differ only along an axis, in order; empty if the axis is unknown."""
        stride = 1
        for name, degree in self.degrees:
            if name == axis:
                first = rank - self.place(axis, rank) * stride
                return tuple(first + stride * i for i in range(degree))
            stride *= degree
        return ()

    def degree(self, axis: str) -> int:
        """Ranks along an axis, 1 if unknown."""
        return dict(self.degrees).get(axis, 1)


NOTHING = Job("", 0, (), {})


def read_job(folder: Path) -> Job:
    """The job of a folder; FileFault if its job.json is there and wrong."""
    members = read_members(folder / "groups")
    path = folder / "job.json"
    if not path.is_file():
        return NOTHING._replace(members=members)
    try:
        value = msgspec.json.decode(read_limited(path, _LIMIT))
        world = int(value.get("world_size", 0))
        order = str(value.get("order", "tp-dp-pp")).split("-")
        told = any(axis in value for axis in order)  # without, only the world is known
        degrees = tuple((axis, int(value.get(axis, 1))) for axis in order) if told else ()
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, AttributeError) as error:
        raise FileFault(f"is no job description: {error}") from None
    product = 1
    for _, degree in degrees:
        product *= degree
    wrong = degrees and (product != world or min(d for _, d in degrees) < 1)
    if not 0 < world <= WORLD_LIMIT or wrong:
        raise FileFault(f"says world_size {world}, but its degrees multiply to {product}")
    return Job(str(value.get("job", ""))[:200], world, degrees, members)


def read_members(folder: Path) -> dict[str, tuple[int, ...]]:
    """Members of the groups that per-rank files tell; unreadable ones are skipped."""
    members: dict[str, tuple[int, ...]] = {}
    if not folder.is_dir():
        return members
    for path in sorted(folder.glob("*.json"))[:WORLD_LIMIT]:
        try:
            value = msgspec.json.decode(
                read_limited(path, _LIMIT), type=dict[str, dict[str, str | list[int]]]
            )
        except (FileFault, msgspec.DecodeError, msgspec.ValidationError, RecursionError):
            continue
        for name, group in value.items():
            ranks = group.get("ranks")
            if isinstance(ranks, list):
                members[name] = tuple(ranks)
    return members
