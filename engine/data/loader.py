"""The micro-batches of a step, as a pure function of the step number.

With G sequences a step, dp replicas and micro-batches of b, the sequence at position
step * G + (m * dp + r) * b + k of the run's order is column k of micro-batch m of replica r. So a
step holds the same sequences under every layout, and its number is all the state there is.
"""

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.data.dataset import Samples, SyntheticDataset, TokenDataset
from engine.data.order import SampleOrder
from engine.data.tokens import prepare
from engine.errors import RecipeError
from engine.spec.recipe import BatchSpec, Recipe

logger = logging.getLogger(__name__)

I64 = NDArray[np.int64]

MicroTokens = tuple[Tensor, Tensor, Tensor]
"""Tokens [seq, b], targets [seq, b], sample ids [b], all int64 on the CPU."""

SYNTHETIC_SAMPLES = 1 << 20


class Share:
    """Which sequences of a step one replica takes, and in which micro-batches."""

    def __init__(self, batch: BatchSpec, *, dp: int, replica: int) -> None:
        size = batch.micro_batch
        if batch.global_batch % (size * dp):
            raise ValueError(f"{batch} does not divide over dp = {dp}")
        if not 0 <= replica < dp:
            raise ValueError(f"replica {replica} is not in 0 .. {dp - 1}")
        places = np.arange(batch.global_batch, dtype=np.int64).reshape(-1, dp, size)
        self.places: I64 = places[:, replica]
        """Places in the step's global batch, [micro-batches, b]."""


class Loader:
    """Gives one replica its micro-batches."""

    def __init__(
        self, samples: Samples, order: SampleOrder, batch: BatchSpec, *, dp: int, replica: int
    ) -> None:
        self._samples, self._order = samples, order
        self._global_batch = batch.global_batch
        self._places = Share(batch, dp=dp, replica=replica).places

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which no sample occurs twice; at least 1."""
        return max(1, self._order.num_samples // self._global_batch)

    @property
    def tokens_per_byte(self) -> float | None:
        """Factor from a loss per token to a loss per byte; None where bytes are unknown."""
        return self._samples.tokens_per_byte

    def microbatches(self, step: int) -> list[MicroTokens]:
        """Micro-batches of the replica in step 0, 1, ...: tokens, targets, sample ids.

        Shapes  [seq, b], [seq, b], [b], int64; targets are tokens moved on by one place. Sample
                ids are positions in the run's order, so that none occurs twice in a run.
        """
        positions = step * self._global_batch + self._places
        _, numbers = self._order.at(positions.ravel())
        return arrange(self._samples.samples(numbers), positions)


def arrange(rows: I64, positions: I64) -> list[MicroTokens]:
    """Sequence-first micro-batches from samples [m * b, seq + 1] at positions [m, b]."""
    num, size = positions.shape
    columns = np.ascontiguousarray(rows.reshape(num, size, -1).transpose(0, 2, 1))
    blocks, ids = torch.from_numpy(columns), torch.from_numpy(positions)
    return [(block[:-1], block[1:], ids[m]) for m, block in enumerate(blocks)]


def open_samples(recipe: Recipe) -> tuple[Samples, Samples | None]:
    """Training samples and held-out ones (None if there is no validation); tokenises if needed.

    Raises RecipeError if source, tokenizer and model do not fit together, or if fewer than a global
    batch of samples is held out.
    """
    data, seq, vocab = recipe.data, recipe.model.seq, recipe.model.vocab
    wanted = bool(recipe.train.eval_batches) and data.validation > 0
    size = recipe.batch.global_batch
    if data.format == "synthetic":
        train = SyntheticDataset(seq=seq, vocab=vocab, seed=recipe.seed, num=SYNTHETIC_SAMPLES)
        held_out = SyntheticDataset(
            seq=seq, vocab=vocab, seed=recipe.seed, first=SYNTHETIC_SAMPLES,
            num=size * max(1, recipe.train.eval_batches),
        )  # fmt: skip
        return train, held_out if wanted else None
    files = prepare(data, vocab=vocab)
    samples = TokenDataset(files, files.train, seq=seq, vocab=vocab)
    if not wanted or files.validation is None:
        return samples, None
    validation = TokenDataset(files, files.validation, seq=seq, vocab=vocab)
    if len(validation) < size:
        raise RecipeError(
            f"{len(validation)} samples are held out, fewer than batch.global_batch = {size}",
            remedy=f"raise data.validation above {data.validation:g}, give more text, "
            "or set train.eval_batches to 0",
        )
    return samples, validation


def open_loaders(recipe: Recipe, *, replica: int) -> tuple[Loader, Loader | None]:
    """The loaders of one replica: shuffled training data, and the fixed first held-out samples.

    The validation loader's steps 0 .. `steps_per_epoch` - 1 are the `train.eval_batches` global
    batches of a validation, or as many as there are samples for.
    """
    train, held_out = open_samples(recipe)
    dp, batch = recipe.layout.dp, recipe.batch
    order = SampleOrder(len(train), seed=recipe.seed, shuffle=recipe.data.shuffle)
    loader = Loader(train, order, batch, dp=dp, replica=replica)
    if held_out is None:
        return loader, None
    batches = min(recipe.train.eval_batches, len(held_out) // batch.global_batch)
    if batches < recipe.train.eval_batches and replica == 0:
        logger.info(
            "validating on %d global batches instead of %d: no more is held out",
            batches, recipe.train.eval_batches,
        )  # fmt: skip
    fixed = SampleOrder(batches * batch.global_batch, seed=0, shuffle=False)
    return loader, Loader(held_out, fixed, batch, dp=dp, replica=replica)
