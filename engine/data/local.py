"""Files on this machine: paths, locks between processes, writing that is whole or absent."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


def is_remote(source: str) -> bool:
    """Whether a source is a URL other than a local file's."""
    scheme, sep, _ = source.partition("://")
    return bool(sep) and scheme not in ("file", "local")


def local_path(source: str) -> str:
    """The path of a source that is not remote; `~` is the home folder."""
    for scheme in ("file://", "local://"):
        source = source.removeprefix(scheme)
    return os.path.expanduser(source)


def user_cache() -> Path:
    """Where token files go unless the recipe says otherwise."""
    return Path.home() / ".cache" / "msctl" / "tokens"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; it is released when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that prepares the same data (%s)", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)
