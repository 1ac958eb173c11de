"""Checkpoints anywhere fsspec reaches: memory, S3, HDFS, GCS and others.

Only whole-object writes, ranged reads, listing and deletion are used. `create` asks for
create-if-absent where the file system knows it and reads back what it wrote, so that a second
writer finds out. Some stores accept the condition and ignore it (rclone's S3): the first `create`
finds that out by asking a second time, and from then on every one waits before it reads back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from engine.ckpt.store import Found, Upload, short_read
from engine.errors import CheckpointError, MissingError

logger = logging.getLogger(__name__)

_UPLOADS_LIMIT = 100_000
BLOCK = 8 << 20
"""Bytes of an image handed over at a time."""

SETTLE_S = 2.0
"""Where create-if-absent is not honoured: time in which a rival's write becomes visible."""

PACKAGES = {
    "s3": "pip install 'msctl[s3]'", "s3a": "pip install 'msctl[s3]'",
    "hdfs": "pip install 'msctl[hdfs]'", "viewfs": "pip install 'msctl[hdfs]'",
    "gs": "pip install gcsfs", "gcs": "pip install gcsfs",
    "abfs": "pip install adlfs", "az": "pip install adlfs", "sftp": "pip install paramiko",
}  # fmt: skip
"""Clients that fsspec needs, by the scheme of a URL."""


class UrlStore:
    """A folder behind an fsspec URL."""

    def __init__(self, url: str) -> None:
        self.url, self.caution = url.rstrip("/"), ""
        self._fs, root = _connect(self.url)
        self._root = root.rstrip("/")
        self._is_s3 = hasattr(self._fs, "call_s3")
        self._asked = False

    def exists(self) -> bool:
        """Whether the root is a folder; object stores have none, there something must lie in it."""
        self._fs.invalidate_cache()
        try:
            return bool(self._fs.isdir(self._root))
        except Exception as error:
            raise self._failed("", error) from error

    def folders(self) -> list[str]:
        """Names of the folders below the root."""
        return sorted(_base(e) for e in self._list("") if e["type"] == "directory")

    def files(self, folder: str) -> list[Found]:
        """Files of a folder."""
        itself = self._path(folder).strip("/")  # S3 servers on a file system list it when empty
        entries = [
            e
            for e in self._list(folder)
            if e["type"] == "file" and str(e["name"]).strip("/") != itself
        ]
        return sorted(Found(_base(e), int(e["size"] or 0), _changed(e)) for e in entries)

    def read(
        self,
        name: str,
        offset: int,
        views: Sequence[memoryview],
        passed: Callable[[memoryview], object] | None = None,
    ) -> None:
        """One ranged read, then copies into the views."""
        wanted = sum(len(view) for view in views)
        try:
            data = self._fs.cat_file(self._path(name), start=offset, end=offset + wanted)
        except Exception as error:
            raise self._failed(name, error) from error
        if len(data) != wanted:
            raise short_read(self.url, name, offset, wanted, len(data))
        at = 0
        for view in views:
            view[:] = data[at : at + len(view)]
            at += len(view)
            if passed:
                passed(view)

    def get(self, name: str, limit: int) -> bytes | None:
        """A small object whole."""
        try:
            data: bytes = self._fs.cat_file(self._path(name), start=0, end=limit + 1)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failed(name, error) from error
        if len(data) > limit:
            raise CheckpointError(
                f"{self.url}/{name}: longer than {limit} bytes",
                remedy="replace the file by its original",
            )
        return data

    def put(self, name: str, views: Iterable[memoryview]) -> None:
        """Stream an object; it is complete when the stream has closed."""
        path = self._path(name)
        try:
            self._make_folder(path)
            with self._fs.open(path, "wb") as file:
                for view in views:
                    file.write(view)
        except Exception as error:
            raise self._failed(name, error) from error

    def put_image(
        self, name: str, memory: memoryview, size: int, passed: Callable[[memoryview], None]
    ) -> None:
        """Stream memory in blocks."""

        def blocks() -> Iterator[memoryview]:
            for at in range(0, size, BLOCK):
                view = memory[at : min(size, at + BLOCK)]
                yield view
                passed(view)

        self.put(name, blocks())

    def create(self, name: str, data: bytes) -> bool:
        """Look, put if nobody else has, and look again at what is there."""
        path = self._path(name)
        self._fs.invalidate_cache()
        try:
            if self._fs.exists(path):
                return False
            self._make_folder(path)
            if not self._put_if_absent(path, data):
                return False
            if not self._asked:
                self._asked, again = True, self._put_if_absent(path, data)
                if again or not _is_conditional(self._fs):
                    self._warn()
            if self.caution:
                time.sleep(SETTLE_S)
            return bool(self._fs.cat_file(path) == data)
        except Exception as error:
            raise self._failed(name, error) from error

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError):
            self._fs.pipe_file(path, data)
        except OSError as error:
            if not _is_taken(error):
                raise
            return False
        return True

    def _warn(self) -> None:
        self.caution = (
            f"{self.url}: the store does not honour create-if-absent, so two runs that write here "
            "at the same moment may not notice each other: give every run a path of its own"
        )
        logger.warning("%s", self.caution)

    def _make_folder(self, path: str) -> None:
        if not self._is_s3:  # where there are none, and s3fs would make a missing bucket
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def settle(self, folder: str) -> None:
        """Nothing to do: an object that was acknowledged is durable."""

    def remove(self, names: Sequence[str]) -> None:
        """Delete objects."""
        for name in names:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise self._failed(name, error) from error

    def remove_folder(self, folder: str) -> None:
        """Delete everything below a folder."""
        self._fs.invalidate_cache()
        try:
            self._fs.rm(self._path(folder), recursive=True)
            if self._is_s3:  # some servers keep the empty folder as an object of its own
                bucket, _, key = self._path(folder).partition("/")
                with contextlib.suppress(OSError):  # and some refuse a name like that
                    self._fs.call_s3("delete_object", Bucket=bucket, Key=f"{key}/")
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failed(folder, error) from error

    def uploads(self) -> list[Upload]:
        """Multipart uploads of S3 below the root; other kinds of store have none."""
        if not self._is_s3:
            return []
        bucket, _, prefix = self._root.partition("/")
        prefix = f"{prefix}/" if prefix else ""
        found: list[Upload] = []
        mark: dict[str, str] = {}
        while True:
            try:
                page = self._fs.call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **mark
                )
            except Exception as error:
                raise self._failed("", error) from error
            for entry in page.get("Uploads", ()):
                name = str(entry["Key"])[len(prefix) :]
                if name.count("/") == 1:  # folder/file: the rest is not ours
                    found.append(Upload(name, str(entry["UploadId"]), _time(entry["Initiated"])))
            if not page.get("IsTruncated") or len(found) > _UPLOADS_LIMIT:
                return found
            mark = {
                "KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]
            }  # fmt: skip

    def abort(self, upload: Upload) -> None:
        """Abort a multipart upload; its parts are freed."""
        bucket, _, key = self._path(upload.name).partition("/")
        try:
            self._fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failed(upload.name, error) from error

    def _list(self, folder: str) -> list[dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            return list(self._fs.ls(self._path(folder), detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise self._failed(folder, error) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _failed(self, name: str, error: Exception) -> CheckpointError:
        # Clients of remote stores raise exceptions of their own, so every kind ends here.
        kind = type(error).__name__
        remedy = "check that the store is reachable and the credentials are valid"
        if "Checksum" in kind:
            remedy = (
                "`msctl ckpt verify` after setting AWS_RESPONSE_CHECKSUM_VALIDATION=when_required: "
                "if it finds no damage, the server sends a file's checksum with a part of it"
            )
        return CheckpointError(f"{self.url}/{name}: {kind}: {_first_line(error)}", remedy=remedy)


def _connect(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        return found
    except ImportError as error:
        raise MissingError(
            f"{url}: the client for {scheme}:// is not installed",
            remedy=PACKAGES.get(scheme, "install the package that fsspec names: ")
            + ("" if scheme in PACKAGES else _first_line(error)),
        ) from error
    except ValueError as error:
        raise MissingError(
            f"{url}: {_first_line(error)}",
            remedy=f"check the URL; some kinds of store need a package, e.g. {PACKAGES['s3']}",
        ) from error
    except Exception as error:
        raise CheckpointError(
            f"{url}: {type(error).__name__}: {_first_line(error)}",
            remedy=f"check the address and the configuration of the {scheme} client",
        ) from error


def _is_taken(error: OSError) -> bool:
    """Whether S3 refused a conditional put; s3fs says EINVAL if the server does not add why."""
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return code in ("PreconditionFailed", "412")


def _is_conditional(fs: Any) -> bool:
    """Whether the file system has a `create` of its own; fsspec's is a look and then a write."""
    from fsspec.spec import AbstractFileSystem

    if hasattr(type(fs), "_pipe_file"):  # asynchronous ones have no default
        return True
    return type(fs).pipe_file is not AbstractFileSystem.pipe_file


def _first_line(error: Exception) -> str:
    """What went wrong without the stack of a Java server, which some clients print in one line."""
    text = str(error).strip().partition("\n")[0].partition("\\n")[0]
    return text[:200]


def _time(value: object) -> float:
    return value.timestamp() if isinstance(value, datetime) else 0.0


def _base(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _changed(entry: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "modified", "created"):
        value = entry.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    since = entry.get("modification_time")  # HDFS: milliseconds
    return since / 1000 if isinstance(since, (int, float)) else 0.0
