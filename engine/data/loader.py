"""The micro-batches of a step, as a pure function of the step number.

What `order.py` puts where and `share.py` gives to whom, read and turned into tensors. Every rank
may have one; `node_loader.py` has the same methods and lets one process per node read for all.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.data.dataset import Samples
from engine.data.order import SampleOrder
from engine.data.samples import open_samples, training_order, validation_order
from engine.data.share import Share
from engine.spec.recipe import BatchSpec, Recipe

I64 = NDArray[np.int64]

MicroTokens = tuple[Tensor, Tensor, Tensor]
"""Tokens [seq, b], targets [seq, b], sample ids [b], all int64 on the CPU."""


class Loader:
    """Gives one replica its micro-batches."""

    def __init__(
        self, samples: Samples, order: SampleOrder, batch: BatchSpec, *, dp: int, replica: int
    ) -> None:
        self._samples, self._order = samples, order
        self._global_batch = batch.global_batch
        self._share = Share(batch, dp=dp, replica=replica)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which no sample occurs twice; at least 1."""
        return max(1, self._order.num_samples // self._global_batch)

    @property
    def tokens_per_byte(self) -> float | None:
        """Factor from a loss per token to a loss per byte; None where bytes are unknown."""
        return self._samples.tokens_per_byte

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the token files so far."""
        return self._samples.bytes_read

    def microbatches(self, step: int) -> list[MicroTokens]:
        """Micro-batches of the replica in step 0, 1, ...: tokens, targets, sample ids.

        Shapes  [seq, b], [seq, b], [b], int64; targets are tokens moved on by one place. Sample
                ids are positions in the run's order, so that none occurs twice in a run.
        """
        positions = self._share.positions(step)
        _, numbers = self._order.at(positions.ravel())
        return arrange(self._samples.samples(numbers), positions)


def arrange(rows: I64, positions: I64) -> list[MicroTokens]:
    """Sequence-first micro-batches from samples [m * b, seq + 1] at positions [m, b]."""
    num, size = positions.shape
    columns = np.ascontiguousarray(rows.reshape(num, size, -1).transpose(0, 2, 1))
    blocks, ids = torch.from_numpy(columns), torch.from_numpy(positions)
    return [(block[:-1], block[1:], ids[m]) for m, block in enumerate(blocks)]


def open_loaders(recipe: Recipe, *, replica: int) -> tuple[Loader, Loader | None]:
    """The loaders of one replica: shuffled training data, and the fixed first held-out samples.

    The validation loader's steps 0 .. `steps_per_epoch` - 1 are the global batches of a validation.
    """
    train, held_out = open_samples(recipe)
    dp, batch = recipe.layout.dp, recipe.batch
    loader = Loader(train, training_order(recipe, train), batch, dp=dp, replica=replica)
    if held_out is None:
        return loader, None
    fixed = validation_order(recipe, held_out)
    return loader, Loader(held_out, fixed, batch, dp=dp, replica=replica)
