"""A folder in the machine's temporary space that is missed when its owner is killed.

The owner holds a lock on a file in it, which the kernel takes back however the owner ends. Whoever
makes the next one removes those that nobody holds any more.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

_OWNER = "owner"


class PrivateFolder:
    """A new folder that only this user can enter; `remove` at the end, by the owner or the next."""

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock: BinaryIO = (self.path / f"{_OWNER}.new").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # seen by others only once it is held
        os.rename(self.path / f"{_OWNER}.new", self.path / _OWNER)

    @classmethod
    def adopt(cls, path: Path) -> "PrivateFolder":
        """Become the owner of one whose owner was killed. OSError if it is gone or still owned."""
        known = path.lstat()
        if not stat.S_ISDIR(known.st_mode) or known.st_uid != os.getuid():
            raise NotADirectoryError(f"{path} is no folder of this user")
        lock = (path / _OWNER).open("rb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        found = cls.__new__(cls)
        found.path, found._lock = path, lock
        return found

    def remove(self) -> None:
        """Take it away with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep(prefix: str) -> list[Path]:
    """Remove folders of this user whose owners are gone; returns them.

    One without an owner's file is left alone: it is being made, or it is somebody else's.
    """
    gone = []
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            known = path.lstat()
            if not stat.S_ISDIR(known.st_mode) or known.st_uid != os.getuid():
                continue
            with (path / _OWNER).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                gone.append(path)
    return gone
