"""Tokenise a source once: the cache of token files that every rank and every later run maps.

A cache entry is a folder named by a digest of all that determines its content. It is made under a
lock by whoever comes first, whole or not at all.
"""

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128

from engine.data.bpe import SAMPLE_BYTES, train_bpe
from engine.data.documents import DocumentReader, piece_bytes
from engine.data.local import local_path, locked, sync, user_cache, write_whole
from engine.data.runs import held_out_below, split_indexed
from engine.data.source import SourceFile, resolve
from engine.data.token_files import (
    META,
    Split,
    TokenFile,
    TokenFiles,
    file_digest,
    open_token_files,
)
from engine.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer, Tokens, read_tokenizer
from engine.errors import MissingError, RecipeError
from engine.spec.recipe import DataSpec
from engine.units import show_bytes, show_count

logger = logging.getLogger(__name__)

_FORMAT = 1
"""Raise when the same input would give other token files."""

_BATCH_BYTES = 4 << 20
_PROGRESS_S = 10.0


def prepare(spec: DataSpec, *, vocab: int, cache: Path | None = None) -> TokenFiles:
    """Token files for a source, made now or found in the cache (default: `data.cache`).

    The same source, tokenizer and options give the same tokens in any number of processes that ask
    at once. Megatron files are not copied: only their split is computed.

    Raises RecipeError if the source is absent or damaged, if `vocab` has no room for the
    tokenizer, or if no document is held out although `data.validation` asks for it.
    """
    if spec.format == "synthetic":
        raise ValueError("synthetic data has no token files")
    root = cache or (Path(local_path(spec.cache)) if spec.cache else user_cache())
    files = resolve(spec)
    is_indexed = files[0].kind == "megatron"
    try:
        tokenizer = None if is_indexed else choose_tokenizer(spec, files, root)
        if tokenizer is not None:
            _check_vocab(spec, tokenizer, vocab)
        folder = root / _key(spec, files, tokenizer)
        found = open_token_files(folder)
        if found is None:
            with locked(folder.with_suffix(".lock")):
                found = open_token_files(folder) or _make(spec, files, tokenizer, folder)
    except OSError as error:
        raise _unwritable(root, error) from error
    _check_splits(spec, found)
    return found


def choose_tokenizer(spec: DataSpec, files: Sequence[SourceFile], root: Path) -> Tokenizer:
    """The tokenizer of a recipe; a BPE is trained on first use and kept under `root`."""
    if spec.tokenizer == "bytes":
        return ByteTokenizer()
    if spec.tokenizer != "bpe":
        return read_tokenizer(spec.tokenizer, eod=spec.eod)
    key = _digest(b"bpe", _source_facts(spec, files), spec.bpe_vocab, SAMPLE_BYTES)
    path = root / f"bpe-{key}.json"
    with locked(path.with_suffix(".lock")):
        if not path.is_file():
            logger.info("training a BPE of %d tokens", spec.bpe_vocab)
            write_whole(path, train_bpe(_training_texts(spec, files), vocab=spec.bpe_vocab))
        return JsonTokenizer(path.read_bytes(), name="bpe")


def is_held_out(text: str, share: float) -> bool:
    """Whether a document belongs to validation: a pure function of its text."""
    return xxh3_64_intdigest(text.encode(errors="replace")) < held_out_below(share)


def _training_texts(spec: DataSpec, files: Sequence[SourceFile]) -> Iterator[str]:
    """Documents to train a vocabulary on: of every file its share of the sample, none held out."""
    total = sum(file.size for file in files)
    reader = DocumentReader(files, spec)
    if total <= SAMPLE_BYTES or spec.limit_bytes:
        texts: Iterator[str] = iter(reader)
    else:
        shares = [SAMPLE_BYTES * file.size // total for file in files]
        texts = (
            text
            for file, share in zip(files, shares, strict=True)
            for text in reader.of_file(file, share)
        )
    seen = 0
    for text in texts:
        if seen > SAMPLE_BYTES:
            return
        if not is_held_out(text, spec.validation):
            seen += len(text)
            yield text


def _make(
    spec: DataSpec, files: Sequence[SourceFile], tokenizer: Tokenizer | None, folder: Path
) -> TokenFiles:
    """Fill a cache entry under a temporary name and give it its own when it is whole."""
    for stale in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        if tokenizer is None:
            sides = split_indexed(
                [f.path for f in files], validation=spec.validation, folder=temporary
            )
        else:
            sides = _tokenize(spec, files, tokenizer, temporary)
        if resolve(spec) != tuple(files):
            raise RecipeError(
                "data.source changed while it was being read",
                remedy="start again when nothing writes to it any more",
            )
        made = TokenFiles(
            folder="",
            tokenizer=tokenizer.name if tokenizer else "megatron",
            vocab=tokenizer.vocab if tokenizer else 0,
            eod=tokenizer.eod if tokenizer else -1,
            train=sides[0],
            validation=sides[1] if spec.validation else None,
        )
        write_whole(temporary / META, msgspec.json.encode(made))
        for path in temporary.iterdir():
            sync(path)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return msgspec.structs.replace(made, folder=str(folder))


class _Side:
    """One side of the split, growing."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._path, self._tokenizer = path, tokenizer
        small = np.uint8 if tokenizer.vocab <= 1 << 8 else np.uint16
        self._type = np.dtype(small if tokenizer.vocab <= 1 << 16 else np.uint32).newbyteorder("<")
        self._file = path.open("wb")
        self._eod = np.array([tokenizer.eod], dtype=self._type)
        self._texts: list[str] = []
        self._waiting = 0
        self.tokens = self.text_bytes = self.documents = 0

    def add(self, text: str) -> None:
        """Take a document; tokenised in batches."""
        self._texts.append(text)
        self._waiting += len(text)
        if self._waiting >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        pieces: list[Tokens] = []
        for tokens in self._tokenizer.encode_batch(self._texts):
            pieces += (tokens, self._eod)
        if pieces:
            joined = np.concatenate(pieces).astype(self._type, copy=False)
            self._file.write(joined.tobytes())
            self.tokens += len(joined)
        self.text_bytes += sum(
            len(t) if t.isascii() else len(t.encode(errors="replace")) for t in self._texts
        )
        self.documents += len(self._texts)
        self._texts, self._waiting = [], 0

    def close(self) -> Split:
        """Write what waits; what the side holds."""
        self._flush()
        self._file.close()
        file = TokenFile(
            path=self._path.name, dtype=self._type.str, tokens=self.tokens,
            digest=file_digest(self._path),
        )  # fmt: skip
        return Split(
            tokens=self.tokens, text_bytes=self.text_bytes, documents=self.documents, files=(file,)
        )


def _tokenize(
    spec: DataSpec, files: Sequence[SourceFile], tokenizer: Tokenizer, folder: Path
) -> tuple[Split, Split]:
    """Read all documents and write their tokens, each to its side."""
    total = sum(file.size for file in files)
    logger.info("tokenizing %d files, %s, with %s", len(files), show_bytes(total), tokenizer.name)
    train = _Side(folder / "train.bin", tokenizer)
    held_out = _Side(folder / "validation.bin", tokenizer)
    reader = DocumentReader(files, spec)
    last = time.monotonic()
    for text in reader:
        side = held_out if is_held_out(text, spec.validation) else train
        side.add(text)
        if time.monotonic() - last > _PROGRESS_S:
            last = time.monotonic()
            logger.info("tokenized %s of text", show_bytes(reader.num_bytes))
    sides = train.close(), held_out.close()
    logger.info(
        "tokenized %s of text: %s tokens to train on, %s held out",
        show_bytes(reader.num_bytes), show_count(sides[0].tokens), show_count(sides[1].tokens),
    )  # fmt: skip
    if reader.num_replaced:
        logger.warning(
            "%d documents hold bytes that are not UTF-8; these were replaced", reader.num_replaced
        )
    return sides


def _key(spec: DataSpec, files: Sequence[SourceFile], tokenizer: Tokenizer | None) -> str:
    """The name of the cache entry."""
    return _digest(b"tokens", _source_facts(spec, files), tokenizer.digest if tokenizer else "")


def _source_facts(spec: DataSpec, files: Sequence[SourceFile]) -> str:
    """All of a source and of a recipe that determines which documents lie on which side."""
    digest = xxh3_128(msgspec.json.encode([spec.field, spec.validation, spec.limit_bytes]))
    digest.update(str(piece_bytes(files, spec.limit_bytes)).encode())
    for file in files:
        digest.update(repr((file.origin, file.path, file.size, file.stamp, file.kind)).encode())
    return digest.hexdigest()


def _digest(*facts: object) -> str:
    return xxh3_128(repr((_FORMAT, *facts)).encode()).hexdigest()


def _check_vocab(spec: DataSpec, tokenizer: Tokenizer, vocab: int) -> None:
    if vocab < tokenizer.vocab:
        raise RecipeError(
            f"model.vocab = {vocab} is smaller than the {tokenizer.vocab} tokens of "
            f"data.tokenizer = {spec.tokenizer!r}",
            remedy=f"set model.vocab to at least {tokenizer.vocab}",
        )


def _check_splits(spec: DataSpec, files: TokenFiles) -> None:
    """Both sides hold documents where both were asked for."""
    if not files.train.tokens:
        raise RecipeError(
            f"data.source holds no text to train on ({files.train.documents} documents)",
            remedy="check data.source and data.field, or lower data.validation",
        )
    if files.validation is not None and not files.validation.tokens:
        documents = files.train.documents
        share = min(0.5, 5 / documents)
        raise RecipeError(
            f"data.validation = {spec.validation:g} holds out none of the {documents} documents",
            remedy=f"set data.validation to e.g. {share:.2g}, give more documents, "
            "or set it to 0 for no validation",
        )


def _unwritable(root: Path, error: OSError) -> MissingError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return MissingError(
        f"data.cache: {root}: {error.strerror or error}",
        remedy="free disk space, or set data.cache to a folder with more"
        if full
        else "set data.cache to a folder that you may write to",
    )
