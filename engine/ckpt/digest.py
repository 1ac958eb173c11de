"""xxh3-128 digests of a file's chunks, taken while the bytes pass by.

xxh3 runs at memory bandwidth, so checksums are always on
(docs/explanation/checkpoint-performance.md).
"""

from collections.abc import Iterable, Iterator

import xxhash


class ChunkDigests:
    """Collects one digest per `chunk_bytes` of a byte stream."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._room = chunk_bytes
        self._state = xxhash.xxh3_128()
        self._done: list[str] = []

    def update(self, view: memoryview) -> None:
        """Take the next bytes of the stream, of any length."""
        at = 0
        while at < len(view):
            part = view[at : at + self._room]
            self._state.update(part)
            at += len(part)
            self._room -= len(part)
            if self._room == 0:
                self._close()

    def finish(self) -> str:
        """All digests in hex, joined, including the last, shorter chunk's."""
        if self._room < self._chunk_bytes:
            self._close()
        return "".join(self._done)

    def _close(self) -> None:
        self._done.append(self._state.hexdigest())
        self._state.reset()
        self._room = self._chunk_bytes


def watched(views: Iterable[memoryview], digests: ChunkDigests) -> Iterator[memoryview]:
    """The same views, digested on their way."""
    for view in views:
        digests.update(view)
        yield view
