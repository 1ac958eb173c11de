"""Split Megatron token files into training and validation without copying a token.

The result is a table of runs, [k, 3]: where a run begins in the stream, which file it lies in, and
at which token of that file. Neighbouring documents on the same side are one run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from engine.data.megatron import IndexedTokens
from engine.data.mixing import mix_all
from engine.data.token_files import Split, TokenFile, file_digest

I64 = NDArray[np.int64]

_BLOCK = 1 << 18
_COLUMNS = 3


def held_out_below(share: float) -> int:
    """Documents whose 64-bit hash lies below this are held out."""
    return int(share * float(1 << 64))


class _Side:
    """The runs of one side, collected file after file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = self.documents = 0
        self._table = path.open("wb")

    def add(self, file: int, begins: I64, lengths: I64) -> None:
        """Append stretches of a file, in order; those that touch become one."""
        keep = lengths > 0
        begins, lengths = begins[keep], lengths[keep]
        if not len(begins):
            return
        first = np.ones(len(begins), dtype=bool)
        first[1:] = begins[1:] != begins[:-1] + lengths[:-1]
        starts = self.tokens + np.cumsum(lengths) - lengths
        rows = np.empty((int(first.sum()), _COLUMNS), dtype="<i8")
        rows[:, 0], rows[:, 1], rows[:, 2] = starts[first], file, begins[first]
        self._table.write(rows.tobytes())
        self.tokens += int(lengths.sum())

    def close(self, files: tuple[TokenFile, ...]) -> Split:
        """Finish the table; what the side holds."""
        self._table.close()
        return Split(
            tokens=self.tokens, text_bytes=0, documents=self.documents, files=files,
            runs=self.path.name, runs_digest=file_digest(self.path),
        )  # fmt: skip


def split_indexed(paths: Sequence[str], *, validation: float, folder: Path) -> tuple[Split, Split]:
    """Training and validation side of .bin/.idx pairs; writes two tables into `folder`.

    A document's side depends on the name of its file and its number in it, so that no token has to
    be read and adding files moves no document.
    """
    sides = (_Side(folder / "train.runs"), _Side(folder / "validation.runs"))
    limit = np.uint64(min(held_out_below(validation), (1 << 64) - 1))
    files = []
    for number, path in enumerate(paths):
        pair = IndexedTokens(path)
        token_path = str(Path(pair.token_path).absolute())
        files.append(TokenFile(path=token_path, dtype=pair.dtype.str, tokens=pair.num_tokens))
        salt = xxh3_64_intdigest(Path(path).stem.encode(errors="surrogateescape"))
        for block in _blocks(pair):
            hashes = mix_all(salt, block.documents.astype(np.uint64))
            held_out = hashes < limit
            for is_held_out, side in enumerate(sides):
                chosen = held_out == bool(is_held_out)
                side.documents += int(chosen.sum())
                parts = np.repeat(chosen, block.counts)
                side.add(number, block.begins[parts], block.lengths[parts])
    train, held = (side.close(tuple(files)) for side in sides)
    return train, held


class _Block(NamedTuple):
    """Some documents of a pair and the sequences they consist of."""

    documents: I64
    counts: I64
    """Sequences of each document."""
    begins: I64
    """Of each sequence, in tokens."""
    lengths: I64


def _blocks(pair: IndexedTokens) -> Iterator[_Block]:
    item = pair.dtype.itemsize
    for first in range(0, pair.num_documents, _BLOCK):
        index = np.array(pair.document_index[first : first + _BLOCK + 1])
        begin, end = int(index[0]), int(index[-1])
        yield _Block(
            documents=np.arange(first, first + len(index) - 1),
            counts=np.diff(index),
            begins=np.array(pair.offsets[begin:end]) // item,
            lengths=np.array(pair.lengths[begin:end]).astype(np.int64),
        )
