"""Text to token numbers: bytes, a BPE trained from the recipe's source, or a tokenizer.json.

A document is encoded without any special token; `tokens.py` puts `eod` behind each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from engine.data.local import local_path
from engine.errors import MissingError, RecipeError
from engine.units import show_bytes

Tokens = NDArray[Any]
"""Token numbers of one document, [n], of an unsigned integer type."""

END_OF_TEXT = "<|endoftext|>"

_KNOWN_ENDS = (
    END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "<|im_end|>", "<|eos|>", "[SEP]",
)  # fmt: skip
_MOST_FILE_BYTES = 256 << 20
_PART = 1 << 20


class Tokenizer(Protocol):
    """Turns texts into token numbers below `vocab`."""

    name: str
    vocab: int
    eod: int
    """The token that ends a document."""
    digest: str
    """Changes when the numbers of any text could."""

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """The token numbers of each text, without `eod`."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text that tokens stand for, as far as they stand for text."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token; 256 of them are enough.

    The end of a document is byte 255, which UTF-8 never uses, so that no text can contain it and
    no byte has to be given up.
    """

    name = "bytes"
    vocab = 256
    eod = 255
    digest = "bytes-1"

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """The bytes of each text, uint8; lone surrogates become question marks."""
        return [np.frombuffer(text.encode(errors="replace"), dtype=np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, with ends of documents left out."""
        return bytes(t for t in tokens if t != self.eod).decode(errors="replace")


class JsonTokenizer:
    """A tokenizer.json of the Hugging Face `tokenizers` library."""

    def __init__(self, content: bytes, *, name: str, eod: str = "") -> None:
        tokenizer = _parse(content, name)
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise RecipeError(f"{name}: the vocabulary is empty", remedy="use another tokenizer")
        self.name = name
        self.vocab = max(vocabulary.values()) + 1
        self.eod = _end(vocabulary, eod, name)
        self.digest = xxh3_128_hexdigest(content + eod.encode())
        self._tokenizer = tokenizer
        self._type = np.dtype(np.uint16 if self.vocab <= 1 << 16 else np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """Token numbers of each text; texts beyond 1 MiB are encoded in parts cut at line ends.

        Text that spells a special token is encoded as text.
        """
        parts = [_parts(text) for text in texts]
        flat = [_well_formed(part) for text_parts in parts for part in text_parts]
        encoded = iter(self._tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        found = []
        for text_parts in parts:
            arrays = [np.array(next(encoded).ids, dtype=self._type) for _ in text_parts]
            found.append(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, special tokens left out."""
        text: str = self._tokenizer.decode([int(t) for t in tokens])
        return text


def read_tokenizer(path: str, *, eod: str = "") -> JsonTokenizer:
    """Load a tokenizer.json; a folder stands for the file of that name in it."""
    file = Path(local_path(path))
    if file.is_dir():
        file /= "tokenizer.json"
    try:
        size = file.stat().st_size
        if size > _MOST_FILE_BYTES:
            raise RecipeError(
                f"data.tokenizer: {file} has {show_bytes(size)}, more than the limit of "
                f"{show_bytes(_MOST_FILE_BYTES)}",
                remedy="give the path of a tokenizer.json",
            )
        content = file.read_bytes()
    except OSError as error:
        raise RecipeError(
            f"data.tokenizer: {file}: {error.strerror}",
            remedy="set data.tokenizer to bytes, bpe, or the path of a tokenizer.json",
        ) from error
    return JsonTokenizer(content, name=str(file), eod=eod)


def library() -> Any:
    """The `tokenizers` package."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingError(
            "BPE and tokenizer.json need the package tokenizers",
            remedy="pip install tokenizers, or set data.tokenizer to bytes",
        ) from error
    return tokenizers


def _parse(content: bytes, name: str) -> Any:
    try:
        tokenizer = library().Tokenizer.from_str(content.decode())
    except MissingError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise RecipeError(
            f"data.tokenizer: {name} is not a tokenizer.json: {str(error)[:200]}",
            remedy="give the tokenizer.json that `tokenizers` or `transformers` saved",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _end(vocabulary: dict[str, int], eod: str, name: str) -> int:
    for candidate in (eod,) if eod else _KNOWN_ENDS:
        if candidate in vocabulary:
            return vocabulary[candidate]
    looked = f"{eod!r} is not in it" if eod else "none of the usual names is in it"
    raise RecipeError(
        f"data.tokenizer: {name} has no known end-of-document token: {looked}",
        remedy="set data.eod to the token of its vocabulary that ends a document",
    )


def _parts(text: str) -> list[str]:
    """A text in pieces of at most 1 Mi characters, cut after a line where there is one."""
    parts = []
    begin = 0
    while len(text) - begin > _PART:
        cut = text.rfind("\n", begin + _PART // 2, begin + _PART) + 1 or begin + _PART
        parts.append(text[begin:cut])
        begin = cut
    parts.append(text[begin:])
    return parts


def _well_formed(text: str) -> str:
    """A text without lone surrogates, which the library cannot take."""
    return text if text.isascii() else text.encode(errors="replace").decode()
