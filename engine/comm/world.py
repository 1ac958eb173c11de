"""Start and end of `torch.distributed` on a rank.

Ranks meet at a store: in Redis, which outlives every rank, or in one that rank 0 serves on a socket
that its parent may have opened beforehand, so that no port is guessed. Before torch makes its
groups all ranks meet once, so that a time-out can say who is missing (paper 3.5).
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from engine.comm.lost import PeerLost, first_line
from engine.comm.meeting import absent
from engine.comm.native_store import best_store
from engine.comm.resp import Client, parse_url
from engine.comm.store import RedisStore
from engine.errors import MissingError, RunFailed

_HERE, _ALL = "msctl/here", "msctl/all here"


class Rendezvous(NamedTuple):
    """Where the ranks of a run meet: at a Redis if there is a URL, else at rank 0's own store."""

    host: str
    port: int
    listen_fd: int = -1
    """An open listening socket of rank 0, or -1."""
    store_url: str = ""
    """Of a Redis, with its password by file; see `engine.comm.resp.parse_url`."""
    prefix: str = ""
    """What its keys begin with: another for each start, so that no start sees an older one."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes in order of rank, equally many ranks on each; for messages."""

    @property
    def shown(self) -> str:
        """For messages, without a password."""
        return parse_url(self.store_url).shown if self.store_url else f"{self.host}:{self.port}"


def start_world(rank: int, world: int, meet: Rendezvous, *, backend: str, timeout_s: float) -> None:
    """Join the run; returns when every rank is there.

    PeerLost names the ranks that stayed away; MissingError says why the Redis cannot be used.
    """
    limit = timedelta(seconds=timeout_s)
    try:
        if meet.store_url:
            store = _at_redis(rank, world, meet, timeout_s)
        else:
            store = _at_rank_0(rank, world, meet, timeout_s)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
        if world > 1:
            token = torch.zeros(1, device="cuda" if backend == "nccl" else "cpu")
            dist.all_reduce(token)
    except (RuntimeError, ValueError, RunFailed) as error:
        if isinstance(error.__cause__, MissingError):
            raise error.__cause__ from error
        what = error.what if isinstance(error, RunFailed) else first_line(error)
        raise PeerLost(
            f"rank {rank} of {world} could not join at {meet.shown}: {what}",
            remedy="check that all ranks run and reach that address, or raise monitor.timeout_s",
        ) from error


def end_world() -> None:
    """Leave the run in order."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _at_redis(rank: int, world: int, meet: Rendezvous, timeout_s: float) -> dist.Store:
    """Two calls a rank, whatever the world's size."""
    client = Client(parse_url(meet.store_url), patience_s=timeout_s)
    client.call(("PING",))  # a wrong password or address is no loss of a peer
    store = RedisStore(meet.store_url, prefix=meet.prefix, timeout_s=timeout_s, client=client)
    store.meet("start", rank, world, nodes=_places(meet.nodes, world), timeout_s=timeout_s)
    return best_store(meet.store_url, prefix=meet.prefix, timeout_s=timeout_s)


def _at_rank_0(rank: int, world: int, meet: Rendezvous, timeout_s: float) -> dist.Store:
    """torch's own store; on it too a counter and one key make the meeting."""
    limit = timedelta(seconds=timeout_s)
    store = dist.TCPStore(
        meet.host, meet.port, world, is_master=rank == 0, timeout=limit, wait_for_workers=False,
        master_listen_fd=meet.listen_fd if rank == 0 and meet.listen_fd >= 0 else None,
    )  # fmt: skip
    store.set(f"{_HERE}/{rank}", "")
    if store.add(_HERE, 1) == world:
        store.set(_ALL, "")
    try:
        store.wait([_ALL], limit)
    except dist.DistStoreError as error:
        missing = [r for r in range(world) if not store.check([f"{_HERE}/{r}"])]
        raise absent("start", missing, world, _places(meet.nodes, world), timeout_s) from error
    return store


def _places(nodes: Sequence[str], world: int) -> Mapping[int, str]:
    """Rank -> the node where it should be."""
    each = -(-world // len(nodes)) if nodes else world
    return {rank: nodes[rank // each] for rank in range(world)} if nodes else {}
