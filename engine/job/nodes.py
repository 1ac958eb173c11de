"""The nodes of a job as the driver knows them: their state, their newest beat, their ranks."""

import socket
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from engine.errors import TraceError
from engine.health.heartbeat import Heartbeat, RankBeat, decode_beat
from engine.job.nursery import Report
from engine.job.order import Order
from engine.job.state import NodeEvent, NodeState, next_node


class Link(Protocol):
    """The driver's way to one executor."""

    def fileno(self) -> int:
        """Readable when something may have come."""

    def messages(self) -> list[bytes] | None:
        """What came; None when the executor is known to be gone."""

    def tell(self, order: Order, listen: socket.socket | None = None) -> None:
        """Give an order."""

    def close(self) -> None:
        """Let go."""


class Node:
    """One node."""

    def __init__(self, name: str, link: Link) -> None:
        self.name, self.link = name, link
        self.state: NodeState = "joining"
        self.beat: Heartbeat | None = None
        self.ranks: tuple[int, ...] = ()
        """Ranks it has to carry in the present start."""
        self.clock_off_s = 0.0
        """Its wall clock against ours, transit included; shown, never used for liveness."""
        self.note = ""
        """Why it is lost or evicted."""

    def happens(self, event: NodeEvent) -> None:
        """Move to the next state."""
        self.state = next_node(self.state, event)

    @property
    def is_here(self) -> bool:
        """Whether it can be counted on now."""
        return self.state in ("ready", "active")

    @property
    def is_warm(self) -> bool:
        """Whether it can start ranks at once."""
        return self.beat is not None and self.beat.state in ("ready", "running")


class Nodes:
    """All nodes; `take` reads what they sent and sorts it."""

    def __init__(self) -> None:
        self.all: dict[str, Node] = {}
        self.attempt = -1
        self.ranks: dict[int, RankBeat] = {}
        """The newest word of every rank of the present start."""
        self.ended: list[Report] = []
        """Ranks of the present start that ended, in the order in which it was heard."""
        self.answers: dict[str, dict[str, str]] = {}
        """Order -> node -> what came of it."""
        self.works: list[tuple[int, int, float, float]] = []
        """(rank, step, seconds, seconds of own work) since somebody asked last."""
        self.refused = 0
        self._homes: dict[int, str] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.all.values())

    def here(self, *, carrying: bool | None = None) -> list[Node]:
        """Nodes that can be counted on."""
        return [n for n in self if n.is_here and carrying in (None, bool(n.ranks))]

    def add(self, node: Node) -> None:
        """A node that may join."""
        self.all[node.name] = node

    def begin(self, attempt: int, blocks: Sequence[tuple[Node, tuple[int, ...]]]) -> None:
        """A new start: nodes and the ranks each has to carry."""
        self.attempt = attempt
        self.ranks, self.ended, self.works = {}, [], []
        for node in self:
            node.ranks = ()
            node.happens("released")
        for node, ranks in blocks:
            node.ranks = ranks
            node.happens("assigned")
        self._homes = {rank: node.name for node, ranks in blocks for rank in ranks}

    def node_of(self, rank: int) -> str:
        """The node that carries a rank; empty if none does."""
        return self._homes.get(rank, "")

    def take(self, node: Node) -> tuple[bool, list[str]]:
        """Read what a node sent: whether its executor is still there, and what was refused."""
        messages = node.link.messages()
        if messages is None:
            return False, []
        refused = []
        for data in messages:
            try:
                beat = decode_beat(data, nodes=(node.name,))
            except TraceError as error:
                self.refused += 1
                refused.append(error.what)
                continue
            self._hear(node, beat)
        return True, refused

    def _hear(self, node: Node, beat: Heartbeat) -> None:
        old = node.beat
        if old is not None and beat.boot == old.boot and beat.seq <= old.seq:
            return  # an echo
        if beat.wall_s:
            node.clock_off_s = beat.wall_s - time.time()
        node.beat = beat
        node.happens("beat")
        for order_id, text in beat.answers.items():
            self.answers.setdefault(order_id, {})[node.name] = text
        if beat.attempt != self.attempt:
            return  # of ranks that are history
        for rank in beat.ranks:
            if rank.rank not in node.ranks:
                continue
            known = self.ranks.get(rank.rank)
            self.ranks[rank.rank] = rank
            self.works += [(rank.rank, *work) for work in rank.works]
            if rank.code is not None and (known is None or known.code is None):
                self.ended.append(
                    Report(event="exit", rank=rank.rank, pid=rank.pid, code=rank.code)
                )

    def lose(self, node: Node, why: str) -> None:
        """A node is gone: so are its ranks."""
        node.happens("loss")
        node.note = why
        for rank in node.ranks:
            known = self.ranks.get(rank, RankBeat(rank=rank))
            if known.code is None:
                self.ranks[rank] = RankBeat(rank=rank, pid=known.pid, health="ended", code=-9)
                self.ended.append(Report(event="exit", rank=rank, code=-9))
