"""Samples of fixed length, by number: from token files, or made up.

A sample is `seq` + 1 tokens; its first `seq` are input, its last `seq` are what to predict.
Neighbouring samples share one token, so that every token but the first is predicted once an epoch.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.data.mixing import U64, mix_all
from engine.data.stream import TokenStream
from engine.data.token_files import Split, TokenFiles
from engine.errors import RecipeError

I64 = NDArray[np.int64]


class Samples(Protocol):
    """A data set as the loader sees it."""

    seq: int

    def __len__(self) -> int:
        """Number of samples."""

    def samples(self, numbers: I64) -> I64:
        """Tokens of the samples with these numbers, [len(numbers), seq + 1]."""

    @property
    def tokens_per_byte(self) -> float | None:
        """Tokens in a byte of text, to give a loss per byte; None where bytes are unknown."""

    def files_of(self, numbers: I64) -> list[str]:
        """The file (or files, in one text) that each sample lies in; empty if it lies in none."""

    @property
    def bytes_read(self) -> int:
        """Bytes taken from files so far."""


class TokenDataset:
    """Samples cut from a split of token files, one after another.

    Raises RecipeError if the split is shorter than one sample, and, when samples are read, if the
    user's own token files hold a token that the model does not know.
    """

    def __init__(self, files: TokenFiles, split: Split, *, seq: int, vocab: int) -> None:
        if split.tokens < seq + 1:
            which = "to train on" if split is files.train else "held out"
            raise RecipeError(
                f"data.source has {split.tokens} tokens {which}, fewer than a sample's "
                f"model.seq + 1 = {seq + 1}",
                remedy=f"give more text, or set model.seq below {max(split.tokens, 2)}"
                if split is files.train
                else "raise data.validation, give more text, or set train.eval_batches to 0",
            )
        self.seq, self._vocab = seq, vocab
        self._stream = TokenStream(split, files.folder)
        self._text_bytes = split.text_bytes
        self._is_trusted = 0 < files.vocab <= vocab

    def __len__(self) -> int:
        return (self._stream.tokens - 1) // self.seq

    def sample(self, number: int) -> I64:
        """Tokens of one sample, [seq + 1]."""
        found: I64 = self.samples(np.array([number]))[0]
        return found

    def samples(self, numbers: I64) -> I64:
        """Tokens of the samples with these numbers, [len(numbers), seq + 1]."""
        found = self._stream.read(numbers * self.seq, self.seq + 1)
        if not self._is_trusted:
            self._check(found, numbers)
        return found

    @property
    def tokens_per_byte(self) -> float | None:
        """Tokens of the split over bytes of its text."""
        return self._stream.tokens / self._text_bytes if self._text_bytes else None

    def files_of(self, numbers: I64) -> list[str]:
        """The file that each sample lies in, or several of them."""
        return self._stream.files_of(numbers * self.seq, self.seq + 1)

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the token files so far."""
        return self._stream.bytes_read

    def _check(self, found: I64, numbers: I64) -> None:
        wrong = (found < 0) | (found >= self._vocab)
        if wrong.any():
            row, column = (int(i[0]) for i in wrong.nonzero())
            (file,) = self.files_of(numbers[row : row + 1])
            raise RecipeError(
                f"{file}: token {found[row, column]} in sample {numbers[row]} is not below "
                f"model.vocab = {self._vocab}",
                remedy="set model.vocab to the size of the vocabulary the files were written with",
            )


class SyntheticDataset:
    """Made-up text in which there is something to learn, a pure function of seed and number.

    A sample is a chain of motifs of 16 tokens out of a fixed set of 64, some more frequent than
    others; one token in 32 is replaced by noise. Inside a motif the next token is almost certain,
    at its end the next motif is not, so that a model that learns falls far below ln(vocab) and
    never to 0.
    """

    MOTIFS = 64
    LENGTH = 16
    NOISE = 32

    def __init__(self, *, seq: int, vocab: int, seed: int, first: int = 0, num: int = 1 << 20):
        """Samples `first` .. `first + num` of the endless sequence that `seed` gives."""
        self.seq, self._vocab, self._seed, self._first, self._num = seq, vocab, seed, first, num
        cells = np.arange(self.MOTIFS * self.LENGTH, dtype=np.uint64)
        motifs = mix_all(seed, 1, cells) % np.uint64(vocab)
        self._motifs = motifs.reshape(self.MOTIFS, self.LENGTH).astype(np.int64)

    def __len__(self) -> int:
        return self._num

    def samples(self, numbers: I64) -> I64:
        """Tokens of the samples with these numbers, [len(numbers), seq + 1]."""
        length = self.seq + 1
        ids = (numbers + self._first).astype(np.uint64)[:, None]
        slots = np.arange(-(-length // self.LENGTH), dtype=np.uint64)
        motif = self._choose(mix_all(self._seed, 2, ids, slots))
        found = self._motifs[motif].reshape(len(numbers), -1)[:, :length]
        chance = mix_all(self._seed, 3, ids, np.arange(length, dtype=np.uint64))
        noise = (chance >> np.uint64(16)) % np.uint64(self._vocab)
        is_noise = chance % np.uint64(self.NOISE) == 0
        chosen: I64 = np.where(is_noise, noise.astype(np.int64), found)
        return chosen

    def _choose(self, bits: U64) -> I64:
        """Motif numbers, those near 0 more frequent: the square of an even choice."""
        even = (bits >> np.uint64(11)).astype(np.float64) / float(1 << 53)
        chosen: I64 = (even * even * self.MOTIFS).astype(np.int64)
        return chosen

    @property
    def tokens_per_byte(self) -> float | None:
        """There is no text."""
        return None

    def files_of(self, numbers: I64) -> list[str]:
        """None."""
        return [""] * len(numbers)

    @property
    def bytes_read(self) -> int:
        """None."""
        return 0
