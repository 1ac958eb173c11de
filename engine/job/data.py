"""Make a run's data ready before its ranks start: faults show at once, tokenising happens once."""

from engine.data.tokens import prepare
from engine.spec.recipe import Recipe


def prepare_data(recipe: Recipe) -> str:
    """Tokenise the source unless the cache has it; says what there is in one line.

    Raises RecipeError if source, tokenizer and model do not fit together.
    """
    if recipe.data.format == "synthetic":
        return "synthetic data"
    files = prepare(recipe.data, vocab=recipe.model.vocab)
    return f"data: {files.train.tokens:,} tokens to train on"
