"""The data sets of a recipe, opened and checked; torch-free, so that a driver can do it first."""

import logging

from engine.data.dataset import Samples, SyntheticDataset, TokenDataset
from engine.data.order import SampleOrder
from engine.data.tokens import prepare
from engine.errors import RecipeError
from engine.spec.recipe import Recipe

logger = logging.getLogger(__name__)

SYNTHETIC_SAMPLES = 1 << 20


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


def training_order(recipe: Recipe, samples: Samples) -> SampleOrder:
    """The order in which a run sees its samples."""
    return SampleOrder(len(samples), seed=recipe.seed, shuffle=recipe.data.shuffle)


def validation_order(recipe: Recipe, held_out: Samples) -> SampleOrder:
    """The first held-out samples, `train.eval_batches` global batches or what there is."""
    size, wanted = recipe.batch.global_batch, recipe.train.eval_batches
    batches = min(wanted, len(held_out) // size)
    if batches < wanted:
        logger.info(
            "validating on %d global batches instead of %d: no more is held out", batches, wanted
        )
    return SampleOrder(batches * size, seed=0, shuffle=False)
