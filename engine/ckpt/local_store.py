"""Checkpoints on a local or mounted file system: first data, then names are forced to the disk.

A file that is not fsynced, or whose folder is not, may be empty or gone after a power cut although
the program saw it: every step that a later step relies on is therefore made durable first.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine.ckpt.store import DRAFT, Found, Upload, drafts, short_read
from engine.errors import CheckpointError, EngineError, MissingError

_IOV_MAX = 512
_GRAIN = 4096
_CACHED = 512 << 10
"""Bytes read before somebody looks at them; half of a core's second-level cache or less."""
BLOCK = 16 << 20
"""Bytes of one write of an image."""


class LocalStore:
    """A folder of a file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url, self.caution = str(root), ""

    def exists(self) -> bool:
        """Whether the root is a folder."""
        return self.root.is_dir()

    def folders(self) -> list[str]:
        """Names of the folders below the root."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str) -> list[Found]:
        """Regular files in a folder."""
        try:
            with os.scandir(self.root / folder) as entries:
                found = []
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(Found(entry.name, status.st_size, status.st_mtime))
                return sorted(found)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(
        self,
        name: str,
        offset: int,
        views: Sequence[memoryview],
        passed: Callable[[memoryview], object] | None = None,
    ) -> None:
        """Scatter a byte range into the views, with as few calls as `passed` allows.

        What `passed` sees is then still in a core's own cache: a digest costs half as much.
        """
        try:
            fd = os.open(self.root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise self._failed(name, error) from error
        wanted, at = sum(len(view) for view in views), offset
        rest = [view for view in views if len(view)]
        try:
            while rest:
                batch = _head(rest, _CACHED) if passed else rest[:_IOV_MAX]
                got = os.preadv(fd, batch, at)
                if got == 0:
                    raise short_read(self.url, name, offset, wanted, at - offset)
                if passed:
                    for view in _head(batch, got):
                        passed(view)
                at += got
                rest = _advance(rest, got)
        except OSError as error:
            raise self._failed(name, error) from error
        finally:
            os.close(fd)

    def get(self, name: str, limit: int) -> bytes | None:
        """A small file whole."""
        try:
            with open(self.root / name, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "no regular file")
                data = file.read(min(limit, status.st_size) + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failed(name, error) from error
        if len(data) > limit:
            raise CheckpointError(
                f"{self.url}/{name}: longer than {limit} bytes",
                remedy="replace the file by its original",
            )
        return data

    def put(self, name: str, views: Iterable[memoryview]) -> None:
        """Write and fsync; the name becomes durable by `settle`."""
        path = self.root / name
        try:
            self._make_folder(path.parent)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            try:
                for view in views:
                    write_all(fd, view)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._unwritable(name, error) from error

    def put_image(
        self, name: str, memory: memoryview, size: int, passed: Callable[[memoryview], None]
    ) -> None:
        """Write past the page cache where the file system allows, fsync, and cut to size."""
        path = self.root / name
        try:
            self._make_folder(path.parent)
            fd, grain = _open_direct(path)
            try:
                for at in range(0, size, BLOCK):
                    end = min(size, at + BLOCK)
                    rounded = at + -(-(end - at) // grain) * grain
                    _pwrite_all(fd, memory[at:rounded], at)
                    passed(memory[at:end])
                os.ftruncate(fd, size)
                os.fsync(fd)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise self._unwritable(name, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """Write a draft, then link it: the name appears with its whole content or not at all."""
        path = self.root / name
        draft = path.with_name(f"{path.name}.{os.urandom(6).hex()}.{DRAFT}")
        self.put(f"{Path(name).parent}/{draft.name}", [memoryview(data)])
        try:
            try:
                os.link(draft, path)
                made = True
            except FileExistsError:
                made = False
            draft.unlink(missing_ok=True)  # prune may have taken it
            _sync_folder(path.parent)
        except OSError as error:
            raise self._unwritable(name, error) from error
        return made

    def settle(self, folder: str) -> None:
        """Fsync the folder and the root that names it."""
        try:
            _sync_folder(self.root / folder)
            _sync_folder(self.root)
        except OSError as error:
            raise self._failed(folder, error) from error

    def remove(self, names: Sequence[str]) -> None:
        """Unlink, then fsync the folders."""
        try:
            for name in names:
                (self.root / name).unlink(missing_ok=True)
            for parent in {(self.root / name).parent for name in names}:
                if parent.is_dir():
                    _sync_folder(parent)
        except OSError as error:
            raise self._failed(names[0], error) from error

    def remove_folder(self, folder: str) -> None:
        """Delete a folder."""
        try:
            shutil.rmtree(self.root / folder)
            _sync_folder(self.root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(folder, error) from error

    def uploads(self) -> list[Upload]:
        """Drafts."""
        return drafts(self)

    def abort(self, upload: Upload) -> None:
        """Unlink a draft."""
        self.remove([upload.name])

    def _make_folder(self, path: Path) -> None:
        made = []
        while not path.is_dir():
            made.append(path)
            path = path.parent
        for folder in reversed(made):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)

    def _unwritable(self, name: str, error: OSError) -> EngineError:
        """Of a file that was to be made: what stands in its way, if that can be seen."""
        path = self.root / name
        for above in reversed(path.parents):
            if above.exists() and not above.is_dir():
                return CheckpointError(
                    f"{self.url}: {above} is a file, so nothing can be written below it",
                    remedy="name a folder to write to",
                )
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return CheckpointError(
                f"{self.url}: no folder can be made here: {os.strerror(error.errno)}",
                remedy="name a folder to write to on another file system",
            )
        return self._failed(name, error)

    def _failed(self, name: str, error: OSError) -> EngineError:
        what = f"{self.url}/{name}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return MissingError(
                what,
                remedy=f"free space under {self.url}, e.g. `msctl ckpt prune {self.url} --yes`",
            )
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return CheckpointError(what, remedy="name a checkpoint that `msctl ckpt list` shows")
        return CheckpointError(what, remedy=f"check the disk and the permissions of {self.url}")


def write_all(fd: int, view: memoryview) -> None:
    """Write every byte of a view."""
    view = view.cast("B")
    while len(view):
        view = view[os.write(fd, view) :]


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for a writer, should the name be a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _open_direct(path: Path) -> tuple[int, int]:
    """A file open for writing and the multiple its writes must keep: 4096 with O_DIRECT, else 1."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644), _GRAIN
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644), 1


def _pwrite_all(fd: int, view: memoryview, at: int) -> None:
    while len(view):
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _head(views: list[memoryview], count: int) -> list[memoryview]:
    """The first `count` bytes of the views, or those of the first that one call can fill."""
    head = []
    for view in views[:_IOV_MAX]:
        head.append(view[:count])
        count -= len(head[-1])
        if count == 0:
            break
    return head


def _advance(views: list[memoryview], count: int) -> list[memoryview]:
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
