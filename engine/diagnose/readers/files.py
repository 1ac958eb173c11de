"""Open what somebody else wrote: plain, .gz or .zst, any size, any encoding, within bounds.

Nothing is read whole. A compressed file may grow to `EXPANDED_LIMIT` and no further, so that a
bomb costs seconds and not the disk. Text in UTF-16 is turned into UTF-8 on the way.
"""

import codecs
import contextlib
import errno
import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from engine.errors import TraceError

CHUNK = 1 << 16
_MOST_FILES = 200_000
EXPANDED_LIMIT = 8 << 30
"""Most bytes that one compressed file may yield."""
_RATIO_LIMIT = 1000
"""Text logs compress 5 to 50 times; a thousand times is a bomb."""

_FEED = 1 << 10
"""Bytes given to zstd at a time: four may stand for 128 KiB, so 32 MiB come back at most."""


class FileFault(Exception):
    """A file that cannot be read further; what was read before stays valid."""


def check_place(path: Path, *, missing: str, pipes: bool = False) -> None:
    """TraceError unless a path is a file, or a folder that may be entered and listed.

    missing  the remedy if there is nothing of that name
    pipes  let pipes and devices pass, for their reader to name them as faults
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode) and not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (FileNotFoundError, NotADirectoryError):
        raise TraceError(f"{path}: no such file or folder", remedy=missing) from None
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be looked at: {error.strerror}",
            remedy="let this user read it, or correct the path",
        ) from None
    if not (pipes or stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise TraceError(
            f"{path}: a pipe or a device, which may never end",
            remedy="write what it gives to a file first, e.g. `COMMAND > FILE`, and name the file",
        )


def is_plain(path: Path) -> bool:
    """Whether a path is no pipe, device or socket, which could keep its reader waiting."""
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def files_below(place: Path, leave_out: frozenset[str] = frozenset()) -> list[Path]:
    """Regular files below a folder in the order of their paths; a file is itself.

    Hidden files, pipes, devices, what may not be looked at and links to folders are left out; of
    very many files the first 200,000 are taken.
    """
    if not place.is_dir():
        return [place]
    found: list[Path] = []
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                if not name.startswith(".") and name not in leave_out and path.is_file():
                    found.append(path)
        if len(found) >= _MOST_FILES:
            break
    return sorted(found)[:_MOST_FILES]


def read_chunks(path: Path, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a file, decompressed, UTF-16 as UTF-8; FileFault says why it ends early."""
    try:
        if not is_plain(path):
            raise FileFault("is a pipe or a device and was not waited for")
        with path.open("rb", buffering=0) as file:
            head = file.read(4)
            file.seek(0)
            if head[:2] == b"\x1f\x8b":
                yield from _decoded(_gunzip(path, chunk))
            elif head == b"\x28\xb5\x2f\xfd":
                yield from _decoded(_unzstd(path, chunk))
            elif head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                yield from _decoded(iter(lambda: file.read(chunk), b""))
            else:
                while piece := file.read(chunk):
                    yield piece
    except OSError as error:
        raise FileFault(f"cannot be read: {error.strerror or error}") from None


def read_limited(path: Path, limit: int) -> bytes:
    """A whole file of at most `limit` bytes after decompression; FileFault if it is larger."""
    pieces, total = [], 0
    for piece in read_chunks(path, chunk=1 << 20):
        total += len(piece)
        if total > limit:
            raise FileFault(f"is larger than the {limit} bytes that are read of such a file")
        pieces.append(piece)
    return b"".join(pieces)


_CONTROL = bytes(byte for byte in range(32) if byte < 9 or 13 < byte < 27 or byte > 27)


def is_binary(head: bytes) -> bool:
    """Whether the first bytes are no text in any encoding that logs come in."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return False
    sample = head[:4096]
    if not sample:
        return False
    return len(sample) - len(sample.translate(None, _CONTROL)) > 0.1 * len(sample)


def _gunzip(path: Path, chunk: int) -> Iterator[bytes]:
    size, total = max(1, path.stat().st_size), 0
    try:
        with gzip.open(path, "rb") as file:
            while piece := file.read1(chunk):  # unlike `read` it keeps what precedes a fault
                total += len(piece)
                _bound(total, size)
                yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFault(f"compressed data ends early or is damaged: {error}") from None


def _unzstd(path: Path, chunk: int) -> Iterator[bytes]:
    import zstandard

    size, total = max(1, path.stat().st_size), 0
    try:
        with path.open("rb") as file:
            reader = zstandard.ZstdDecompressor()
            frame = reader.decompressobj()
            while feed := file.read(_FEED):
                while feed:
                    frame = reader.decompressobj() if frame.eof else frame
                    piece = frame.decompress(feed)
                    feed = frame.unused_data if frame.eof else b""
                    total += len(piece)
                    _bound(total, size)
                    yield from (piece[at : at + chunk] for at in range(0, len(piece), chunk))
            if not frame.eof:
                raise FileFault("compressed data ends early")
    except zstandard.ZstdError as error:
        raise FileFault(f"compressed data ends early or is damaged: {error}") from None


def _bound(total: int, size: int) -> None:
    if total > EXPANDED_LIMIT or (total > 64 << 20 and total > _RATIO_LIMIT * size):
        raise FileFault(f"expands to more than {total} bytes from {size}: not read further")


def _decoded(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces as UTF-8 if they start with a UTF-16 mark, else as they are."""
    first = next(pieces, b"")
    if first[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        if first:
            yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    yield decoder.decode(first).encode()
    for piece in pieces:
        yield decoder.decode(piece).encode()


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if it cannot be asked."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cores() -> int:
    """Cores that this process may use, at most 16: more readers wait for one disk."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(mine or 1, 16)
