"""Source files as streams of bytes: local or remote, plain or compressed, never unbounded.

Compressed data is decoded as it is read; a file that grows beyond all reason is refused.
"""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any

from engine.data.source import SourceFile
from engine.errors import MissingError, RecipeError

_BUFFER = 1 << 20
_ZSTD_WINDOW = 1 << 27
"""Largest window a .zst file may ask for, 128 MiB: what the zstd tool accepts by default."""
_GROWTH = 1000
"""Text shrinks to a tenth at most; gzip cannot pass 1032."""
_GROWTH_FROM = 64 << 20
_ZSTD_INPUT = 2 << 10
"""Decoded at a time: the densest valid data makes 64 MiB of it."""


class _Limited(io.RawIOBase):
    """Decoded bytes, counted."""

    def __init__(self, decoder: Any, file: SourceFile) -> None:
        self._decoder, self._file = decoder, file
        self._left = _GROWTH_FROM + _GROWTH * file.size

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next; 0 at the end."""
        try:
            data = self._decoder.read(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(self._file, error) from error
        self._left -= len(data)
        if self._left < 0:
            raise RecipeError(
                f"{self._file.shown}: grows to more than {_GROWTH} times its size when unpacked",
                remedy="unpack it and look at it before training on it",
            )
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def open_stream(file: SourceFile) -> Iterator[io.BufferedIOBase]:
    """Open a source file for reading from its start, decompressed.

    Raises RecipeError, also while the stream is read, if the file is damaged or cannot be read.
    """
    try:
        with open_raw(file) as raw, contextlib.ExitStack() as stack:
            if file.compression == "gz":
                decoder = stack.enter_context(gzip.GzipFile(fileobj=raw))
                yield io.BufferedReader(_Limited(decoder, file), _BUFFER)
            elif file.compression == "zst":
                yield io.BufferedReader(_Limited(_ZstdFrames(raw), file), _BUFFER)
            else:
                yield raw  # type: ignore[misc]
    except OSError as error:
        raise RecipeError(
            f"{file.shown}: {error.strerror or error}", remedy="check that the file can be read"
        ) from error


def open_raw(file: SourceFile) -> IO[bytes]:
    """The bytes as stored."""
    if not file.origin:
        return open(file.path, "rb", buffering=_BUFFER)
    import fsspec

    opened: IO[bytes] = fsspec.core.url_to_fs(file.origin)[0].open(file.path, "rb")
    return opened


class _ZstdFrames:
    """Decodes one zstd frame after another; a last frame that is cut short raises EOFError.

    The package's own stream reader takes a cut for the end.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingError(
                "reading .zst files needs the package zstandard", remedy="pip install zstandard"
            ) from error
        self._raw, self._error = raw, zstandard.ZstdError
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame: Any = None
        self._input = self._output = b""

    def read(self, size: int) -> bytes:
        """At most `size` decoded bytes; none at the end."""
        while not self._output:
            self._input = self._input or self._raw.read(_ZSTD_INPUT)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the last frame is cut short")
                return b""
            self._decode()
        data, self._output = self._output[:size], self._output[size:]
        return data

    def _decode(self) -> None:
        self._frame = self._frame or self._decoder.decompressobj()
        try:
            self._output = self._frame.decompress(self._input)
        except self._error as error:
            raise EOFError(str(error)) from error
        self._input = b""
        if self._frame.eof:
            self._input, self._frame = self._frame.unused_data, None


def _damaged(file: SourceFile, error: Exception) -> RecipeError:
    return RecipeError(
        f"{file.shown}: damaged {file.compression} data ({error})",
        remedy="fetch or compress the file again, or leave it out of data.source",
    )
