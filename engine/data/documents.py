"""The documents of source files, one after another, in bounded memory.

A document is a text file (or a piece of one that is long), a line of .jsonl or a row of .parquet.
Files are read to the end exactly once and everything in them is distrusted: a line or row that is
not as promised is an error with its place.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from engine.data.source import SourceFile
from engine.data.streams import open_stream
from engine.errors import RecipeError
from engine.spec.recipe import DataSpec
from engine.units import show_bytes

logger = logging.getLogger(__name__)

MOST_DOCUMENT_BYTES = 64 << 20
"""Longest line of a .jsonl file or text of a .parquet row."""

_LARGEST_PIECE = 1 << 20
_SMALLEST_PIECE = 4 << 10
_ENOUGH_DOCUMENTS = 256
_PROBE = 8192
_ROWS = 64


def piece_bytes(files: Sequence[SourceFile], limit_bytes: int = 0) -> int:
    """Length above which a text file is cut into several documents, at ends of lines.

    1 MiB, so that memory is bounded; less if there are few files, so that there are about
    256 documents of which some can be held out for validation.
    """
    if len(files) >= _ENOUGH_DOCUMENTS:
        return _LARGEST_PIECE
    total = sum(file.size for file in files)
    total = min(total, limit_bytes) if limit_bytes else total
    return min(max(total // _ENOUGH_DOCUMENTS, _SMALLEST_PIECE), _LARGEST_PIECE)


class DocumentReader:
    """Iterates over the texts of files; afterwards `num_*` tell what was met on the way."""

    def __init__(self, files: Sequence[SourceFile], spec: DataSpec) -> None:
        self._files, self._spec = files, spec
        self._piece = piece_bytes(files, spec.limit_bytes)
        self.num_bytes = 0
        self.num_replaced = 0
        """Documents with bytes that are not UTF-8; each such byte became U+FFFD."""
        self.num_binary = 0
        """Files found in a folder and left out because they are not text."""

    def __iter__(self) -> Iterator[str]:
        """Every non-empty document, up to `limit_bytes` of text in all."""
        limit = self._spec.limit_bytes
        for file in self._files:
            for text in self._texts(file):
                size = len(text) if text.isascii() else len(text.encode(errors="replace"))
                if limit and self.num_bytes + size > limit:
                    text = _cut(text.encode(errors="replace"), limit - self.num_bytes)
                    self.num_bytes = limit
                    if text:
                        yield text
                    return
                self.num_bytes += size
                if text:
                    yield text
            if limit and self.num_bytes >= limit:
                return

    def of_file(self, file: SourceFile, most_bytes: int) -> Iterator[str]:
        """The first documents of one file, about `most_bytes` of text."""
        seen = 0
        for text in self._texts(file):
            if seen >= most_bytes:
                return
            seen += len(text)
            yield text

    def _texts(self, file: SourceFile) -> Iterator[str]:
        if file.kind == "parquet":
            return _rows(file, self._spec.field)
        return self._lines(file) if file.kind == "jsonl" else self._pieces(file)

    def _pieces(self, file: SourceFile) -> Iterator[str]:
        """A text file, cut at ends of lines where it is long."""
        with open_stream(file) as stream:
            rest, first = b"", True
            while block := rest + stream.read(self._piece - len(rest)):
                if first and b"\0" in block[:_PROBE]:
                    self._refuse_binary(file)
                    return
                size = len(block) if len(block) < self._piece else _good_cut(block)
                yield self._decode(block[:size].removeprefix(b"\xef\xbb\xbf" if first else b""))
                rest, first = block[size:], False

    def _lines(self, file: SourceFile) -> Iterator[str]:
        """The texts in a file of one JSON object a line."""
        key = self._spec.field
        decode = _line_decoder(key)
        with open_stream(file) as stream:
            number = 0
            while line := stream.readline(MOST_DOCUMENT_BYTES + 1):
                number += 1
                where = f"{file.shown}:{number}"
                if len(line) > MOST_DOCUMENT_BYTES:
                    raise _too_long(where)
                if not line.strip():
                    continue
                try:
                    yield decode(line)
                except (msgspec.MsgspecError, UnicodeError) as error:
                    raise RecipeError(
                        f"{where}: not a JSON object with a text under {key!r}: {error}",
                        remedy="correct the line, or set data.field to the key that holds the text",
                    ) from error

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.num_replaced += 1
            return data.decode(errors="replace")

    def _refuse_binary(self, file: SourceFile) -> None:
        """Leave out a file that is not text, unless it was asked for by name."""
        if file.named:
            raise RecipeError(
                f"{file.shown}: not a text file: it holds NUL bytes",
                remedy="name text files, or set data.format to what the file is",
            )
        self.num_binary += 1
        logger.warning("left out %s: not a text file", file.shown)


def _good_cut(block: bytes) -> int:
    """Where to cut a full block: after a line, else after a space, else between characters."""
    half = len(block) // 2
    for mark in (b"\n", b" "):
        cut = block.rfind(mark, half) + 1
        if cut:
            return cut
    cut = len(block)
    while cut > half and block[cut - 1] & 0xC0 == 0x80:
        cut -= 1
    return cut - 1 if cut > half else len(block)


def _cut(data: bytes, size: int) -> str:
    """The longest text of at most `size` bytes at the start of UTF-8 data."""
    return data[:size].decode(errors="ignore")


def _line_decoder(key: str) -> Any:
    """A function from a line to the text under a key; other keys are skipped unread."""
    try:
        line: Any = msgspec.defstruct("Line", [("text", str)], rename={"text": key})
    except ValueError:  # a key with quotes or backslashes
        slow = msgspec.json.Decoder(dict[str, msgspec.Raw])
        return lambda data: msgspec.json.decode(slow.decode(data).get(key, b"null"), type=str)
    decoder = msgspec.json.Decoder(line)
    return lambda data: decoder.decode(data).text


def _rows(file: SourceFile, column: str) -> Iterator[str]:
    """The texts in one column of a parquet file, row after row."""
    import duckdb

    connection = duckdb.connect(config={"threads": 1, "memory_limit": "1GB"})
    path = file.path
    try:
        if file.origin:
            path = _mounted(connection, file)
        kinds = {
            str(row[0]): str(row[1])
            for row in connection.execute("DESCRIBE FROM read_parquet(?)", [path]).fetchall()
        }
        if kinds.get(column) != "VARCHAR":
            raise _no_column(file, column, kinds)
        quoted = '"' + column.replace('"', '""') + '"'
        rows = connection.execute(f"SELECT {quoted} FROM read_parquet(?)", [path])
        number = 0
        while batch := rows.fetchmany(_ROWS):
            for (text,) in batch:
                number += 1
                if text is not None and len(text) > MOST_DOCUMENT_BYTES:
                    raise _too_long(f"{file.shown}: row {number}")
                yield text or ""
    except duckdb.Error as error:
        raise RecipeError(
            f"{file.shown}: not a readable parquet file: {str(error).splitlines()[0]}",
            remedy="write the file again, or leave it out of data.source",
        ) from error
    finally:
        connection.close()


def _mounted(connection: Any, file: SourceFile) -> str:
    """Let duckdb read a remote file through fsspec; returns the URL to ask for."""
    import fsspec

    fs = fsspec.core.url_to_fs(file.origin)[0]
    connection.register_filesystem(fs)
    return str(fs.unstrip_protocol(file.path))


def _no_column(file: SourceFile, column: str, kinds: dict[str, str]) -> RecipeError:
    texts = [name for name, kind in kinds.items() if kind == "VARCHAR"]
    has = f"is {kinds[column]}, not text" if column in kinds else "does not exist"
    return RecipeError(
        f"{file.shown}: column {column!r} {has}",
        remedy=f"set data.field to a column of text: {', '.join(texts[:20]) or 'there is none'}",
    )


def _too_long(where: str) -> RecipeError:
    limit = show_bytes(MOST_DOCUMENT_BYTES)
    return RecipeError(
        f"{where}: document longer than {limit}", remedy=f"cut documents to at most {limit}"
    )
