"""Start and end of `torch.distributed` on a rank.

Ranks meet at a store: rank 0 serves it on a socket that its parent may have opened beforehand, so
that no port is guessed. An address that is taken, or a peer that does not come, is an error that
says so.
"""

from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from engine.comm.lost import PeerLost, first_line


class Rendezvous(NamedTuple):
    """Where the ranks of a run meet. `listen_fd` is an open listening socket of rank 0, or -1."""

    host: str
    port: int
    listen_fd: int = -1


def start_world(rank: int, world: int, meet: Rendezvous, *, backend: str, timeout_s: float) -> None:
    """Join the run; returns when every rank is there. PeerLost if one stays away too long."""
    limit = timedelta(seconds=timeout_s)
    listen_fd = meet.listen_fd if rank == 0 and meet.listen_fd >= 0 else None
    try:
        store = dist.TCPStore(
            meet.host, meet.port, world, is_master=rank == 0, timeout=limit,
            wait_for_workers=False, master_listen_fd=listen_fd,
        )  # fmt: skip
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
        if world > 1:
            token = torch.zeros(1, device="cuda" if backend == "nccl" else "cpu")
            dist.all_reduce(token)
    except (RuntimeError, ValueError) as error:
        raise PeerLost(
            f"rank {rank} of {world} could not join at {meet.host}:{meet.port}: "
            f"{first_line(error)}",
            remedy="check that all ranks run and reach that address, or raise monitor.timeout_s",
        ) from error


def end_world() -> None:
    """Leave the run in order."""
    if dist.is_initialized():
        dist.destroy_process_group()
