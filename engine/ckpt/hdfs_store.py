"""Checkpoints on HDFS, by the client hdfs-native: no Java, no Hadoop on this machine.

HDFS closes a file before its bytes are on a disk, and shows a dead writer's file with length zero.
So every block is synced before it is left, and `create` renames a finished draft: rename is one
transaction of the NameNode and refuses a name that exists.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from engine.ckpt.store import DRAFT, Upload, drafts
from engine.ckpt.url_store import BLOCK, PACKAGES, UrlStore
from engine.errors import MissingError


class HdfsStore(UrlStore):
    """A folder behind an `hdfs://` or `viewfs://` URL."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if not hasattr(self._fs, "client"):
            raise MissingError(
                f"{url}: {type(self._fs).__module__} answers for HDFS, which cannot create a file "
                "without overwriting another",
                remedy=PACKAGES["hdfs"],
            )

    def put(self, name: str, views: Iterable[memoryview]) -> None:
        """Stream a file and sync every 8 MiB: HDFS syncs only the block it is writing."""
        path = self._path(name)
        try:
            self._make_folder(path)
            self._write(path, views)
        except Exception as error:
            raise self._failed(name, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """Write a draft, then give it the name: whole, or not at all if the name is taken."""
        path = self._path(name)
        draft = f"{path}.{os.urandom(6).hex()}.{DRAFT}"
        try:
            if self._fs.exists(path):
                return False
            self._make_folder(path)
            self._write(draft, [memoryview(data)])
            try:
                self._fs.mv(draft, path)
            except FileExistsError:
                self._fs.rm_file(draft)
                return False
            return bool(self._fs.cat_file(path) == data)
        except Exception as error:
            with contextlib.suppress(Exception):
                self._fs.rm_file(draft)
            raise self._failed(name, error) from error

    def uploads(self) -> list[Upload]:
        """Drafts."""
        return drafts(self)

    def abort(self, upload: Upload) -> None:
        """Delete a draft."""
        self.remove([upload.name])

    def _write(self, path: str, views: Iterable[memoryview]) -> None:
        file: Any = self._fs.open(path, "wb")
        at = 0
        for view in views:
            for piece in _cut(view, at):
                file.write(piece)
                at += len(piece)
                if at % BLOCK == 0:
                    file.hsync()
        if at % BLOCK:
            file.hsync()
        file.close()  # once only: a second close raises LeaseExpired


def _cut(view: memoryview, at: int) -> Iterator[memoryview]:
    """A view in pieces that end where a sync is due; HDFS blocks are multiples of that."""
    while len(view):
        size = min(len(view), BLOCK - at % BLOCK)
        yield view[:size]
        view, at = view[size:], at + size
