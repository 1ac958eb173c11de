"""Where checkpoints lie: the few operations a checkpoint needs of a file system or object store.

Names are written once and never renamed, and the last object written decides. That is all that
local disks, HDFS and S3 have in common, so nothing else is relied upon. Local folders are in
engine/ckpt/local_store.py, HDFS in engine/ckpt/hdfs_store.py, everything else that fsspec reaches
in engine/ckpt/url_store.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from engine.errors import CheckpointError


class Found(NamedTuple):
    """One file of a folder: plain name, size, time of its last change (seconds since 1970)."""

    name: str
    bytes: int
    changed_s: float


class Upload(NamedTuple):
    """A write that somebody began: an upload that no listing shows, or a file that lacks its name.

    `started_s` is when it began, for a draft when it was last written to.
    """

    name: str
    """`folder/file`, as in Store."""
    id: str
    """The store's own; DRAFT for a draft."""
    started_s: float


DRAFT = "draft"
"""Ending of a file that waits for its name, and the id of such an Upload."""


class Store(Protocol):
    """A folder of checkpoint folders. `name` is always `folder/file`."""

    url: str
    caution: str
    """What a user must know about this store, once it has shown; empty: nothing."""

    def exists(self) -> bool:
        """Whether the root is a folder; in an object store, whether anything lies below it."""

    def folders(self) -> list[str]:
        """Names of the folders directly below the root; empty if the root does not exist."""

    def files(self, folder: str) -> list[Found]:
        """Files directly in a folder; empty if there is no such folder."""

    def read(
        self,
        name: str,
        offset: int,
        views: Sequence[memoryview],
        passed: Callable[[memoryview], object] | None = None,
    ) -> None:
        """Fill the views, one after the other, from `offset`; CheckpointError on a short file.

        `passed` sees all bytes in their order, as soon as they have come.
        """

    def get(self, name: str, limit: int) -> bytes | None:
        """A whole small file, None if absent; raises CheckpointError if longer than `limit`."""

    def put(self, name: str, views: Iterable[memoryview]) -> None:
        """Write a file durably, making the folder; a file of that name is replaced."""

    def put_image(
        self, name: str, memory: memoryview, size: int, passed: Callable[[memoryview], None]
    ) -> None:
        """As `put`, `size` bytes of page-aligned memory; calls `passed` with each block."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file durably and whole, unless one of that name exists: then False."""

    def settle(self, folder: str) -> None:
        """Make the names in a folder, and the folder itself, durable."""

    def remove(self, names: Sequence[str]) -> None:
        """Delete files, durably; no error if one is gone already."""

    def remove_folder(self, folder: str) -> None:
        """Delete a folder and the files in it; no error if it is gone already."""

    def uploads(self) -> list[Upload]:
        """Writes that were begun and not completed, where a store keeps such."""

    def abort(self, upload: Upload) -> None:
        """Give up an unfinished write; no error if it is gone already."""


def drafts(store: Store) -> list[Upload]:
    """What a writer leaves that dies between its draft and the draft's name."""
    return [
        Upload(f"{folder}/{found.name}", DRAFT, found.changed_s)
        for folder in store.folders()
        for found in store.files(folder)
        if found.name.endswith(f".{DRAFT}")
    ]


def open_store(where: str | Path) -> Store:
    """The store behind a path or an fsspec URL (`file://`, `memory://`, `s3://`, `hdfs://` ...)."""
    text = str(where)
    if not is_url(text):
        from engine.ckpt.local_store import LocalStore

        return LocalStore(Path(local(text)))
    if text.startswith(("hdfs://", "viewfs://")):
        from engine.ckpt.hdfs_store import HdfsStore

        return HdfsStore(text)
    from engine.ckpt.url_store import UrlStore

    return UrlStore(text)


def is_url(where: str | Path) -> bool:
    """Whether this is reached through fsspec, and not a folder of this machine's file systems."""
    return "://" in str(where) and not str(where).startswith(("file://", "local://"))


def local(where: str | Path) -> str:
    """The path of what is no URL, or that of a `file://` URL."""
    text = str(where)
    return text.partition("://")[2] if "://" in text else text


def holds(where: str | Path, name: str) -> bool:
    """Whether a file of that name lies directly in a folder or under a URL."""
    return any(found.name == name for found in open_store(where).files(""))


def absolute(where: str | Path) -> str:
    """A location that means the same in every process: URLs as they are, paths in full."""
    return str(where if "://" in str(where) else Path(where).absolute())


def split(where: str | Path) -> tuple[str, str]:
    """A checkpoint's location as (root, folder)."""
    root, slash, folder = str(where).rstrip("/").rpartition("/")
    if not slash:
        return ".", folder
    return root or "/", folder


def short_read(url: str, name: str, offset: int, wanted: int, got: int) -> CheckpointError:
    """The error of a file that ends too early."""
    return CheckpointError(
        f"{url}/{name}: {got} of {wanted} bytes at offset {offset}; the file is truncated",
        remedy="resume from an older checkpoint, or copy this one again from its source",
    )
