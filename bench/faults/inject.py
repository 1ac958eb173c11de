"""The faults that come from outside the ranks: what is done, and what has to be said of it.

Everything here is real: signals, cables, control groups, a frozen file system, a second driver.
What lasts (a cut, a frozen store) has ended when `inject` returns.
"""

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.faults import on_links, on_nodes, on_ranks, on_store
from bench.faults.hit import RANKS, Hit, Struck
from bench.faults.net import Network

if TYPE_CHECKING:
    from bench.faults.campaign import Job

_HOW: dict[str, Callable[[Hit], Struck]] = {
    **on_ranks.HOW, **on_nodes.HOW, **on_links.HOW, **on_store.HOW,
}  # fmt: skip
OUTSIDE = frozenset(_HOW)
ON_STORE = frozenset(on_store.HOW) - {"torn-checkpoint"}


def inject(job: "Job", net: Network, fault: str, rng: random.Random) -> Struck:
    """Do it."""
    rank = rng.randrange(RANKS)
    node = job.node_of(rank)
    time.sleep(rng.uniform(0.0, 0.5))
    hit = Hit(job, net, rank, node)
    return _HOW[fault](hit)
