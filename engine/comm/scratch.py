"""A process group of its own, outside the world of a run: for checks before and beside training.

Meets at a given store, has its own short time-out, and leaves nothing behind when it is closed.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import RunFailed


def file_store(path: str, world: int) -> dist.Store:
    """A store in a file, for ranks of one machine."""
    return dist.FileStore(path, world)


class ScratchGroup:
    """Ranks that test their links. Every operation is synchronous; RunFailed if a peer is lost."""

    def __init__(self, store: dist.Store, rank: int, world: int, *, backend: str,
                 timeout_s: float) -> None:  # fmt: skip
        self.rank, self.world = rank, world
        self.device = torch.device("cuda" if backend == "nccl" else "cpu")
        limit = timedelta(seconds=timeout_s)
        self._group: Any
        try:
            if backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = limit
                self._group = dist.ProcessGroupNCCL(store, rank, world, options)
            else:
                self._group = dist.ProcessGroupGloo(store, rank, world, limit)
        except RuntimeError as error:
            raise self._lost("meet its peers", error) from error

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum in place over all ranks."""
        self._wait("all-reduce", lambda: self._group.allreduce([tensor]))

    def all_to_all(self, out: Tensor, data: Tensor) -> None:
        """Part i of `data` goes to rank i; equal parts."""
        empty: Sequence[int] = []
        self._wait("all-to-all", lambda: self._group.alltoall_base(out, data, empty, empty))

    def barrier(self) -> None:
        """Return when all ranks have come."""
        token = torch.zeros(1, device=self.device)
        self.all_reduce(token)
        float(token)  # on a GPU this waits for the stream

    def _wait(self, what: str, start: Any) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: RuntimeError) -> RunFailed:
        first = str(error).strip().splitlines()[0][:200]
        return RunFailed(
            f"rank {self.rank} of {self.world} could not {what}: {first}",
            remedy="test these nodes against others with msctl selfcheck --on hosts",
        )
