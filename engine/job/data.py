"""Make a run's data ready before its ranks start: faults show at once, tokenising happens once."""

from engine.data.samples import open_samples
from engine.spec.recipe import Recipe


def prepare_data(recipe: Recipe) -> str:
    """Tokenise the source unless the cache has it; says what there is in one line.

    Raises RecipeError if source, tokenizer and model do not fit together, or if there are too few
    tokens to train on or to validate with.
    """
    train, held_out = open_samples(recipe)
    seq = recipe.model.seq
    said = f"data: {len(train):,} samples of {seq} tokens to train on"
    return said if held_out is None else f"{said}, {len(held_out):,} held out"
