"""Train a byte-level BPE from the documents of a recipe.

The same documents give the same vocabulary: merges are chosen by count, ties by token number.
"""

from collections.abc import Iterable

from engine.data.tokenizer import END_OF_TEXT, library
from engine.errors import RecipeError

SAMPLE_BYTES = 32 << 20
"""Text a vocabulary is trained from: more changes little, and all distinct words are held."""

_LONGEST_TOKEN = 64


def train_bpe(texts: Iterable[str], *, vocab: int) -> bytes:
    """A tokenizer.json with at most `vocab` tokens, `<|endoftext|>` and all 256 bytes among them.

    Fewer if the text has fewer pairs to merge. Raises RecipeError if there is no text.
    """
    lib = library()
    tokenizer = lib.Tokenizer(lib.models.BPE())
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = lib.decoders.ByteLevel()
    trainer = lib.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=_LONGEST_TOKEN,
        show_progress=False,
    )
    seen = _Counted(texts)
    tokenizer.train_from_iterator(seen, trainer=trainer)
    if not seen.count:
        raise RecipeError(
            "data.tokenizer = bpe: the source holds no text to train on",
            remedy="check data.source, or lower data.validation",
        )
    content: str = tokenizer.to_str()
    return content.encode()


class _Counted:
    """An iterator that knows how many texts it gave."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self.count = 0

    def __iter__(self) -> "_Counted":
        return self

    def __next__(self) -> str:
        text = next(self._texts)
        self.count += 1
        return text.encode(errors="replace").decode()
