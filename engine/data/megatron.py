"""Megatron-LM's token files: a .bin of tokens and an .idx that says where sequences lie.

The .idx, version 1, all little-endian: 9 bytes of magic, version as u64, a code for the token type
as u8, the number of sequences S as u64, the length D of the document index as u64; then S lengths
as i32, S byte offsets into the .bin as i64, and D numbers of sequences as i64: document i is made
of the sequences index[i] .. index[i + 1]. Multimodal files end with S modes as i8, ignored here.
"""

import array
import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.local import sync
from engine.errors import RecipeError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1

_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_CODES = {np.dtype(name): code for code, name in _TYPES.items()}
_BLOCK = 1 << 20
_REMEDY = "write the pair again with Megatron-LM's preprocessing, or leave it out of data.source"


class IndexedTokens:
    """A .bin/.idx pair, memory-mapped; everything the index says is checked on opening.

    Raises RecipeError for a pair that is absent, torn or contradicts itself.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        stem = os.fspath(path).removesuffix(".idx").removesuffix(".bin")
        self.index_path, self.token_path = stem + ".idx", stem + ".bin"
        try:
            size, token_bytes = os.path.getsize(self.index_path), os.path.getsize(self.token_path)
            with open(self.index_path, "rb") as file:
                header = file.read(_HEADER.size)
        except OSError as error:
            raise RecipeError(
                f"{error.filename}: {error.strerror}",
                remedy=f"give both {self.token_path} and {self.index_path}",
            ) from error
        self.dtype, sequences, documents = self._read_header(header, size)
        self.num_tokens = token_bytes // self.dtype.itemsize
        at = _HEADER.size
        self.lengths = self._map("<i4", at, sequences)
        self.offsets = self._map("<i8", at + 4 * sequences, sequences)
        self.document_index = self._map("<i8", at + 12 * sequences, documents)
        self._check(token_bytes)
        self.tokens: NDArray[Any] = np.empty(0, self.dtype)
        """The whole .bin, [num_tokens]."""
        if self.num_tokens:
            mapped = np.memmap(self.token_path, self.dtype, "r", shape=(self.num_tokens,))
            self.tokens = np.asarray(mapped)

    @property
    def num_sequences(self) -> int:
        """Runs of tokens that the index names."""
        return len(self.lengths)

    @property
    def num_documents(self) -> int:
        """Groups of sequences."""
        return len(self.document_index) - 1

    def sequence(self, number: int) -> NDArray[Any]:
        """The tokens of one sequence, a view."""
        begin = int(self.offsets[number]) // self.dtype.itemsize
        return self.tokens[begin : begin + int(self.lengths[number])]

    def document(self, number: int) -> NDArray[Any]:
        """The tokens of one document."""
        first, end = (int(n) for n in self.document_index[number : number + 2])
        parts = [self.sequence(n) for n in range(first, end)]
        return np.concatenate(parts) if parts else self.tokens[:0]

    def _read_header(self, header: bytes, size: int) -> tuple[np.dtype[Any], int, int]:
        """Token type, number of sequences and length of the document index."""
        if len(header) < _HEADER.size:
            raise self._bad(f"has {size} bytes, fewer than its header's {_HEADER.size}")
        magic, version, code, sequences, documents = _HEADER.unpack(header)
        if magic != MAGIC:
            raise self._bad(f"begins with {magic!r}, not {MAGIC!r}")
        if version != VERSION:
            raise self._bad(f"has version {version}; this reads version {VERSION}")
        if code not in _TYPES:
            raise self._bad(f"names token type {code}; known are {min(_TYPES)} to {max(_TYPES)}")
        dtype = np.dtype(_TYPES[code])
        if dtype.kind == "f":
            raise self._bad(f"holds {dtype.name}, not token numbers")
        body = 12 * sequences + 8 * documents
        if size - _HEADER.size not in (body, body + sequences):
            raise self._bad(
                f"has {size} bytes, but {sequences} sequences and a document index of {documents} "
                f"need {_HEADER.size + body}"
            )
        if not documents:
            raise self._bad("has no document index")
        return dtype, sequences, documents

    def _map(self, dtype: str, offset: int, count: int) -> NDArray[Any]:
        if not count:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(self.index_path, dtype, "r", offset, shape=(count,)))

    def _check(self, token_bytes: int) -> None:
        """Every sequence lies inside the .bin and every document is a run of sequences."""
        item = self.dtype.itemsize
        for begin in range(0, self.num_sequences, _BLOCK):
            lengths = self.lengths[begin : begin + _BLOCK].astype(np.int64)
            offsets = self.offsets[begin : begin + _BLOCK]
            wrong = (lengths < 0) | (offsets < 0) | (offsets % item != 0)
            wrong |= offsets > token_bytes
            wrong |= lengths * item > token_bytes - np.minimum(offsets, token_bytes)
            if wrong.any():
                at = int(wrong.argmax())
                raise self._bad(
                    f"puts sequence {begin + at} at byte {offsets[at]} with {lengths[at]} tokens "
                    f"of {item} bytes, but {self.token_path} has {token_bytes} bytes"
                )
        index = self.document_index
        if index[0] != 0 or index[-1] != self.num_sequences:
            raise self._bad(
                f"has documents from sequence {index[0]} to {index[-1]}, "
                f"not from 0 to {self.num_sequences}"
            )
        for begin in range(0, len(index) - 1, _BLOCK):
            steps = np.diff(index[begin : begin + _BLOCK + 1])
            if (steps < 0).any():
                at = begin + int((steps < 0).argmax())
                raise self._bad(f"has document {at} end before it begins")

    def _bad(self, what: str) -> RecipeError:
        return RecipeError(f"{self.index_path}: {what}", remedy=_REMEDY)


class IndexedWriter:
    """Writes a .bin/.idx pair that Megatron-LM reads; use as a context manager.

    Both files appear when all is written; after an exception neither does.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, vocab: int) -> None:
        """`vocab` chooses the token type as Megatron-LM does: u16 below 65,500, else i32."""
        self._prefix = os.fspath(prefix)
        self._vocab = vocab
        self._dtype = np.dtype("<u2" if vocab < 65500 else "<i4")
        self._lengths = array.array("i")
        self._documents = array.array("q", [0])
        Path(self._prefix).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._temporary(".bin"), "wb")  # noqa: SIM115 - closed by close()

    def add(self, tokens: NDArray[Any]) -> None:
        """Append a sequence to the current document."""
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocab:
            raise ValueError(f"token outside 0 .. {self._vocab - 1}")
        self._file.write(np.ascontiguousarray(tokens, dtype=self._dtype).tobytes())
        self._lengths.append(len(tokens))

    def end_document(self) -> None:
        """Close the current document; it may be empty."""
        self._documents.append(len(self._lengths))

    def close(self) -> None:
        """Write the index and give both files their names."""
        if self._documents[-1] != len(self._lengths):
            self.end_document()
        self._file.close()
        lengths = np.frombuffer(self._lengths, np.intc) if self._lengths else np.empty(0, np.intc)
        ends = np.cumsum(lengths, dtype=np.int64) * self._dtype.itemsize
        with open(self._temporary(".idx"), "wb") as file:
            counts = (len(lengths), len(self._documents))
            file.write(_HEADER.pack(MAGIC, VERSION, _CODES[self._dtype], *counts))
            file.write(lengths.astype("<i4").tobytes())
            file.write((ends - lengths * np.int64(self._dtype.itemsize)).astype("<i8").tobytes())
            file.write(np.array(self._documents, dtype="<i8").tobytes())
        for suffix in (".bin", ".idx"):
            sync(Path(self._temporary(suffix)))
            os.replace(self._temporary(suffix), self._prefix + suffix)
        sync(Path(self._prefix).parent)

    def __enter__(self) -> "IndexedWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
            return
        self._file.close()
        for suffix in (".bin", ".idx"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary(suffix))

    def _temporary(self, suffix: str) -> str:
        return f"{self._prefix}{suffix}.{os.getpid()}.tmp"
