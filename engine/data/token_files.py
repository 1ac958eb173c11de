"""What a prepared source looks like on disk, and whether it is whole.

A folder with `meta.json`, written last, beside the token files it describes. `tokens.py` makes it,
`stream.py` reads it.
"""

import logging
from pathlib import Path

import msgspec
import numpy as np
from xxhash import xxh3_64

from engine.spec.base import Noun

logger = logging.getLogger(__name__)

META = "meta.json"
VERSION = 1

_BLOCK = 1 << 22
_WHOLE = 64 << 20
"""Up to this size all of a file is checked on opening; of a longer one size, head and tail."""


class TokenFile(Noun, frozen=True, kw_only=True):
    """Tokens of one type, one after another."""

    path: str
    """Relative to the folder of `meta.json`; absolute for files of the user's."""
    dtype: str
    """Of numpy, with byte order."""
    tokens: int
    digest: str = ""
    """xxh3 of what is checked on opening; empty for files of the user's."""


class Split(Noun, frozen=True, kw_only=True):
    """The documents that are trained on, or those held out."""

    tokens: int
    """End-of-document tokens included."""
    text_bytes: int
    """Of UTF-8 text; 0 where only tokens are known."""
    documents: int
    files: tuple[TokenFile, ...]
    runs: str = ""
    """Table of the stretches of `files` that make up the stream; empty: all of the one file."""
    runs_digest: str = ""


class TokenFiles(Noun, frozen=True, kw_only=True):
    """A source, tokenised."""

    version: int = VERSION
    folder: str
    tokenizer: str
    vocab: int
    """Tokens the tokenizer knows; token numbers lie below. 0: unknown, from the user's files."""
    eod: int
    """The token behind every document; -1: unknown."""
    train: Split
    validation: Split | None = None


def file_digest(path: Path) -> str:
    """A digest of a file: of all of it, or beyond 64 MiB of its first and last 4 MiB."""
    digest = xxh3_64()
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            while block := file.read(_BLOCK):
                digest.update(block)
        else:
            digest.update(file.read(_BLOCK))
            file.seek(size - _BLOCK)
            digest.update(file.read(_BLOCK))
    return f"{size}:{digest.hexdigest()}"


def open_token_files(folder: Path) -> TokenFiles | None:
    """What a folder holds, if it is whole; None if it is absent, torn or of another version."""
    try:
        content = (folder / META).read_bytes()
    except OSError:
        return None
    try:
        files = msgspec.json.decode(content, type=TokenFiles)
        files = msgspec.structs.replace(files, folder=str(folder))
        fault = "" if files.version == VERSION else f"version {files.version}"
        for split in (files.train, files.validation):
            fault = fault or (_fault(folder, split) if split else "")
    except (msgspec.MsgspecError, UnicodeError, OSError, TypeError, ValueError) as error:
        fault = str(error)
    if fault:
        logger.warning("token files in %s are not usable, making them again: %s", folder, fault)
        return None
    return files


def _fault(folder: Path, split: Split) -> str:
    """What is wrong with a split's files, or nothing."""
    for file in split.files:
        path = folder / file.path
        size = file.tokens * np.dtype(file.dtype).itemsize
        if path.stat().st_size != size:
            return f"{path} has {path.stat().st_size} bytes instead of {size}"
        if file.digest and file_digest(path) != file.digest:
            return f"{path} is damaged"
    if split.runs and file_digest(folder / split.runs) != split.runs_digest:
        return f"{folder / split.runs} is damaged"
    return ""
