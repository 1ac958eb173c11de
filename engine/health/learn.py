"""Turn reports of a healthy fleet into a machine type that `--profiles` reads.

The arithmetic is in `profile.py`; here is what surrounds it: the base to start from, and refusing
reports of nodes that are not healthy.
"""

from collections.abc import Sequence

import msgspec

from engine.errors import RecipeError
from engine.health.profile import Profile, builtin_profiles, choose, dump_profile, learn
from engine.health.result import NodeReport


def learn_profile(reports: Sequence[NodeReport], *, name: str, match: str = "",
                  base: str = "") -> str:  # fmt: skip
    """A profile as TOML; RecipeError if a report is of an unfit node or nothing was measured."""
    unfit = sorted({r.node for r in reports if r.status in ("fail", "error")})
    if unfit:
        raise RecipeError(
            f"{len(unfit)} of {len(reports)} reports are of unfit nodes, e.g. {unfit[0]}",
            remedy="leave them out: a bar learned from a sick node lets sick nodes pass",
        )
    start = choose(builtin_profiles(), None, name=base) if base else Profile()
    made = learn(reports, name=name, base=start)
    return dump_profile(msgspec.structs.replace(made, match=match or start.match))
