"""A rank's end of the node's loader process: the same methods as `loader.Loader`, nothing read.

A step is copied out of shared memory. The next one is asked for at once, so that it has been read
by the time training comes to it; a rank then does not wait for the loader process to be scheduled.
"""

import os
import platform
import socket

import numpy as np
import torch
from numpy.typing import NDArray

from engine.data.loader import MicroTokens
from engine.data.ring import Channel, Counters, Fault, Hello, Message, Ready, Ring, RingShape, Want
from engine.data.share import Share
from engine.errors import EngineError, LayoutError, MissingError, RecipeError, RunFailed
from engine.spec.recipe import Recipe

_KINDS: dict[str, type[EngineError]] = {
    kind.__name__: kind for kind in (RecipeError, LayoutError, MissingError)
}

_IS_ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Stores of one process are seen in their order by another: what a slot says can be believed
without waiting for the message that says the same."""


class NodeLoader:
    """Gives one replica its micro-batches, read by the node's loader process.

    Raises RunFailed, naming the file that was being read, if that process dies or stops answering
    for `timeout_s`; otherwise the error that it met.
    """

    def __init__(
        self, address: str, stream: str, share: Share, *, replica: int, timeout_s: float
    ) -> None:
        self._share, self._stream, self._timeout_s = share, stream, timeout_s
        self._ring: Ring | None = None
        self._asked: int | None = None
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        self._channel = Channel(connection)
        try:
            connection.connect(address)
        except OSError as error:
            raise self._dead("cannot be reached") from error
        descriptors: list[int] = []
        self._send(Hello(stream=stream))
        shape = self._receive(descriptors)
        assert isinstance(shape, RingShape), f"the loader answered {shape}"
        self._ring = Ring(shape, descriptors[0])
        os.close(descriptors[0])
        self._shape = shape
        self._place = shape.replicas.index(replica)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which no sample occurs twice; at least 1."""
        return self._shape.steps_per_epoch

    @property
    def tokens_per_byte(self) -> float | None:
        """Factor from a loss per token to a loss per byte; None where bytes are unknown."""
        return self._shape.tokens_per_byte

    @property
    def counters(self) -> Counters:
        """What the loader process has read for this stream so far."""
        assert self._ring is not None, "set by the constructor"
        return self._ring.counters

    def microbatches(self, step: int) -> list[MicroTokens]:
        """Micro-batches of the replica in a step, as `Loader.microbatches`; steps may be skipped.

        All ranks of the node must ask for the same steps in the same order.
        """
        self.ask(step)
        is_ready = self._hear(step)
        columns = self._copy(step) if is_ready or _IS_ORDERED else None
        while columns is None:
            message = self._receive()
            if isinstance(message, Ready) and message.step == step:
                columns = self._copy(step)
        is_last = not self._shape.is_endless and step + 1 >= self._shape.steps_per_epoch
        self.ask(-1 if is_last else step + 1)
        blocks = torch.from_numpy(columns)
        ids = torch.from_numpy(self._share.positions(step))
        return [(block[:-1], block[1:], ids[m]) for m, block in enumerate(blocks)]

    def close(self) -> None:
        """Leave; the loader process ends when all have left."""
        self._channel.socket.close()

    def ask(self, step: int) -> None:
        """Have a step read, without waiting; `microbatches` asks for the step after its own."""
        if self._asked != step:
            self._send(Want(step=step))
            self._asked = step

    def _copy(self, step: int) -> NDArray[np.int64] | None:
        assert self._ring is not None, "set by the constructor"
        return self._ring.copy(step, self._place)

    def _hear(self, step: int) -> bool:
        """Look through what was said meanwhile; whether a step was said to be ready."""
        try:
            messages = self._channel.receive_all()
        except (EOFError, OSError) as error:
            raise self._dead("has died") from error
        for message in messages:
            if isinstance(message, Fault):
                raise _error(message)
        return Ready(step=step) in messages

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError:
            while True:  # its last words, or that there were none
                self._receive()

    def _receive(self, descriptors: list[int] | None = None) -> Message:
        """The next message; raises what the loader process reports or how it failed."""
        try:
            message = self._channel.receive_one(descriptors)
        except TimeoutError as error:
            raise self._dead(f"has not answered for {self._timeout_s:g} s") from error
        except (EOFError, OSError) as error:
            raise self._dead("has died") from error
        if isinstance(message, Fault):
            raise _error(message)
        return message

    def _dead(self, how: str) -> RunFailed:
        file = self._ring.file if self._ring is not None else ""
        where = f" while reading {file}" if file else ""
        return RunFailed(
            f"the node's data loader {how}{where} (stream {self._stream})",
            remedy=f"check {file or 'log/data.log'} and the storage it lies on, "
            "then start again from the last checkpoint",
        )


def _error(fault: Fault) -> EngineError:
    """The error that the loader process met."""
    return _KINDS.get(fault.kind, RunFailed)(fault.what, remedy=fault.remedy)


def open_node_loaders(
    recipe: Recipe, address: str, *, replica: int
) -> tuple[NodeLoader, NodeLoader | None]:
    """As `loader.open_loaders`, but through the node's loader process at `address`."""
    share = Share(recipe.batch, dp=recipe.layout.dp, replica=replica)
    wait = recipe.monitor.timeout_s
    train = NodeLoader(address, "train", share, replica=replica, timeout_s=wait)
    if not (recipe.train.eval_batches and recipe.data.validation):
        return train, None
    return train, NodeLoader(address, "validation", share, replica=replica, timeout_s=wait)
