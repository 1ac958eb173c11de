"""Who did not come to a meeting, as an error; torch-free."""

from collections.abc import Mapping, Sequence

from engine.errors import RunFailed
from engine.units import show_seconds

_SHOWN = 8


def absent(name: str, missing: Sequence[int], world: int, nodes: Mapping[int, str],
           within_s: float) -> RunFailed:  # fmt: skip
    """`1,023 of 1,024 ranks came to "start" within 30 s; missing: rank 517 on node-64`."""
    shown = ", ".join(
        f"rank {r}" + (f" on {nodes[r]}" if r in nodes else "") for r in missing[:_SHOWN]
    )
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return RunFailed(
        f"{world - len(missing):,} of {world:,} ranks came to {name!r} within "
        f"{show_seconds(within_s)}; missing: {shown}{more}",
        remedy="run `msctl selfcheck` on these nodes; raise monitor.timeout_s if they are slow",
    )
