"""How the bytes of a snapshot get into the arena while training goes on.

Weights and moments do not change between one optimizer update and the next, so a copy that begins
after an update may take until just before the next one. On CPU a helper thread copies (numpy lets
go of the interpreter meanwhile) and whoever waits for it helps; on CUDA a stream of its own fills
page-locked memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.ckpt.snapshot import host_view
from engine.device import SideStream

logger = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]
BLOCK = 16 << 20
"""Bytes copied at a time: what a waiting trainer may still have to wait for."""


class Copier(Protocol):
    """One copy at a time, from tensors into their places in a slot."""

    def pin(self, memory: Bytes) -> None:
        """Make a slot's memory fit for fast copies; once per slot."""

    def start(
        self, memory: Bytes, sources: Sequence[tuple[int, torch.Tensor]], *, background: bool
    ) -> None:
        """Begin to copy 1-D tensors to their byte offsets in `memory`."""

    def finish(self) -> None:
        """Return when all is copied; only then may the tensors change."""

    def close(self) -> None:
        """Release threads and page locks."""


def open_copier(tensors: Sequence[torch.Tensor], threads: int) -> Copier:
    """The copier for where the tensors live."""
    if tensors and tensors[0].is_cuda:
        return DeviceCopier(tensors[0].device)
    return HostCopier(threads)


class HostCopier:
    """Copies by threads, in blocks that whoever has time takes from one queue."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="snapshot")
        self._blocks: deque[tuple[Bytes, Bytes]] = deque()
        self._helpers: list[Future[None]] = []

    def pin(self, memory: Bytes) -> None:
        """Nothing to do: the pages are there since the slot was mapped."""

    def start(
        self, memory: Bytes, sources: Sequence[tuple[int, torch.Tensor]], *, background: bool
    ) -> None:
        """Queue the blocks; with `background` helpers begin at once, else `finish` does it all."""
        self._blocks = deque(_blocks(memory, sources))
        helpers = self._threads if background else self._threads - 1
        self._helpers = [self._pool.submit(self._work) for _ in range(helpers)]

    def finish(self) -> None:
        """Copy what is left and wait for the helpers' last blocks."""
        self._work()
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.result()

    def close(self) -> None:
        """End the threads."""
        self._blocks.clear()
        self._pool.shutdown()

    def _work(self) -> None:
        while True:
            try:
                to, part = self._blocks.popleft()
            except IndexError:
                return
            np.copyto(to, part)


class DeviceCopier:
    """Copies from a CUDA device on a stream of its own, so that compute goes on."""

    def __init__(self, device: torch.device) -> None:
        self._stream = SideStream(device)

    def pin(self, memory: Bytes) -> None:
        """Lock the pages; without it copies still work, but hold up the host."""
        code = self._stream.pin(memory.ctypes.data, memory.nbytes)
        if code:
            logger.warning("CUDA error %d: checkpoint memory is not page-locked", code)

    def start(
        self, memory: Bytes, sources: Sequence[tuple[int, torch.Tensor]], *, background: bool
    ) -> None:
        """Queue the copies behind what the current stream has been given so far."""
        pairs = []
        for offset, tensor in sources:
            flat = tensor.detach().view(torch.uint8)
            host = torch.from_numpy(memory[offset : offset + flat.numel()])
            pairs += list(zip(host.split(BLOCK), flat.split(BLOCK), strict=True))
        self._stream.copy(pairs)

    def finish(self) -> None:
        """Wait for the last copy."""
        self._stream.wait()

    def close(self) -> None:
        """Unlock the pages."""
        self._stream.unpin()


def _blocks(
    memory: Bytes, sources: Sequence[tuple[int, torch.Tensor]]
) -> Iterator[tuple[Bytes, Bytes]]:
    for offset, tensor in sources:
        source = np.frombuffer(host_view(tensor), np.uint8)
        for at in range(0, len(source), BLOCK):
            part = source[at : at + BLOCK]
            yield memory[offset + at : offset + at + len(part)], part
