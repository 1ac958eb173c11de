"""Who keeps whose copies: nodes in a ring, each at the next one that holds another replica.

A node's loss then takes no snapshot with it. Addresses travel with the ranks' agreement on each
save, so a flusher that was started again is found by the next one.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.ckpt.arena import SLOTS, CommitJob, Peers, Spool
from engine.ckpt.flush import FlushOptions
from engine.ckpt.leftovers import start_flusher
from engine.ckpt.partner import Copy, copies_in, fetch
from engine.ckpt.save import Gather
from engine.errors import EngineError
from engine.spec.base import Noun

logger = logging.getLogger(__name__)

_ADDRESS_S = 5.0
"""How long a flusher may take to say where it listens; later ones join at the next save."""


class Place(Noun, frozen=True, kw_only=True):
    """A rank's node, the replica it belongs to, and where its node takes copies."""

    node: str
    replica: int
    address: str


class Ring:
    """One rank's part in it."""

    def __init__(self, *, secret: str, node: str, replica: int, listen: str) -> None:
        """`listen` is an address of this node that the others reach."""
        self.secret, self.node, self.replica, self.listen = secret, node, replica, listen

    def alone(self) -> Peers:
        """What a flusher is told before the nodes know each other."""
        return Peers(secret=self.secret, node=self.node, listen=self.listen)

    def wait_for_address(self, spool: Spool) -> str:
        """Where this node takes copies; empty if its flusher does not say so in time."""
        deadline = time.monotonic() + _ADDRESS_S
        while not spool.address() and time.monotonic() < deadline:
            time.sleep(0.01)
        return spool.address()

    def place(self, spool: Spool) -> Place:
        """What this rank tells the others."""
        return Place(node=self.node, replica=self.replica, address=spool.address())

    def close_up(self, spool: Spool, places: Sequence[Place]) -> None:
        """Tell this node's flusher who its partners are now."""
        nodes = list(dict.fromkeys(place.node for place in places))
        if len(nodes) < 2:
            return
        to = partner_of(self.node, places)
        sources = [node for node in nodes if node != self.node]
        source = next((n for n in sources if partner_of(n, places) == self.node), "")
        address = next((p.address for p in places if p.node == to and p.address), "")
        spool.write_peers(msgspec.structs.replace(self.alone(), to=address, source=source))


def partner_of(node: str, places: Sequence[Place]) -> str:
    """The node that keeps a node's copies: the next one with other replicas, else the next one.

    One that is a partner already is passed over as long as there is a free one.
    """
    nodes = list(dict.fromkeys(place.node for place in places))
    replicas = {n: {p.replica for p in places if p.node == n} for n in nodes}
    size = len(nodes)
    # The same distance for all nodes: then nobody keeps copies of two.
    for distance in range(1, size):
        if all(
            replicas[nodes[i]].isdisjoint(replicas[nodes[(i + distance) % size]])
            for i in range(size)
        ):
            return nodes[(nodes.index(node) + distance) % size]
    return nodes[(nodes.index(node) + 1) % size]


class _Held(Noun, frozen=True, kw_only=True):
    """What a rank brings to the search for copies; only a node's first rank lists its memory."""

    node: str
    address: str = ""
    copies: tuple[Copy, ...] = ()


def bring_copies(spool: Path, ring: Ring, *, rank: int, lead: bool, gather: Gather) -> int:
    """Before a restart from memory: fetch what this node lacks from nodes that kept a copy of it.

    Called by all ranks together; `lead` for one rank of each node. Returns how many were fetched.
    """
    mine, held = _Held(node=ring.node), None
    if lead:
        held = Spool(spool)
        held.write_peers(held.peers() or ring.alone())
        start_flusher(held, FlushOptions())
        mine = _Held(
            node=ring.node, address=ring.wait_for_address(held),
            copies=tuple(copies_in(spool, ring.node)),
        )  # fmt: skip
    every = [
        msgspec.json.decode(item, type=_Held)
        for item in gather(msgspec.json.encode(mine))
        if isinstance(item, bytes)
    ]
    got = 0
    if held is not None:
        folder = newest_whole(every)
        own = {copy.rank for copy in mine.copies if (copy.node, copy.folder) == (ring.node, folder)}
        here = {r for r, at in enumerate(every) if at.node == ring.node} if folder else set()
        for other in sorted(here - own):
            got += _fetch_one(held, ring, every, other, folder)
    gather(b"")  # nobody looks into the memory before it is complete
    return got


def newest_whole(every: Sequence[_Held]) -> str:
    """The newest checkpoint of which some node has every rank's part; empty if there is none."""
    parts: dict[tuple[int, str], set[int]] = {}
    for at in every:
        for copy in at.copies:
            parts.setdefault((copy.step, copy.folder), set()).add(copy.rank)
    whole = [key for key, ranks in parts.items() if set(range(len(every))) <= ranks]
    return max(whole, default=(0, ""))[1]


def _fetch_one(held: Spool, ring: Ring, every: Sequence[_Held], rank: int, folder: str) -> int:
    slots = [held.ticket(rank, slot) for slot in range(SLOTS)]
    slot = min(range(SLOTS), key=lambda s: -1 if (t := slots[s]) is None else t.step)
    for at in every:
        for copy in at.copies:
            if (copy.rank, copy.folder) != (rank, folder) or not at.address:
                continue
            try:
                ticket = fetch(at.address, ring.secret, copy, held, slot=slot)
            except (OSError, EngineError, ValueError) as error:
                logger.warning("rank %d of %s from %s: %s", rank, folder, at.node, error)
                continue
            logger.info("rank %d of %s came from the memory of %s", rank, folder, at.node)
            if rank == 0:
                job = CommitJob(
                    root=ticket.root, folder=folder, world=ticket.world, meta=ticket.meta,
                    created_s=time.time(), owner=ticket.owner,
                )  # fmt: skip
                held.write_job(folder, job)
            return 1
    return 0


def address_towards(host: str) -> str:
    """The address of this node on the way to another host; the loopback one if that is here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: the kernel only chooses a route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
