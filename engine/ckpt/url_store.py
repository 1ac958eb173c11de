"""Checkpoints anywhere fsspec reaches: memory, S3, HDFS, GCS and others.

Only whole-object writes, ranged reads, listing and deletion are used. `create` asks for
create-if-absent where the file system knows it and reads back what it wrote, so that a second
writer finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from engine.ckpt.store import Found, Upload, short_read
from engine.errors import CheckpointError, MissingError

_UPLOADS_LIMIT = 100_000
BLOCK = 8 << 20
"""Bytes of an image handed over at a time."""


class UrlStore:
    """A folder behind an fsspec URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._fs, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise MissingError(
                f"{url}: {error}",
                remedy="install the package for this kind of store, e.g. `pip install 'msctl[s3]'`",
            ) from error
        self._root = root.rstrip("/")

    def folders(self) -> list[str]:
        """Names of the folders below the root."""
        return sorted(_base(e) for e in self._list("") if e["type"] == "directory")

    def files(self, folder: str) -> list[Found]:
        """Files of a folder."""
        entries = [e for e in self._list(folder) if e["type"] == "file"]
        return sorted(Found(_base(e), int(e["size"] or 0), _changed(e)) for e in entries)

    def read(self, name: str, offset: int, views: Sequence[memoryview]) -> None:
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
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
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
        """Conditional put where there is one; else look, put and look again."""
        path = self._path(name)
        try:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                self._fs.pipe_file(path, data, mode="create")
            except (TypeError, NotImplementedError):
                if self._fs.exists(path):
                    return False
                self._fs.pipe_file(path, data)
            return bool(self._fs.cat_file(path) == data)
        except FileExistsError:
            return False
        except Exception as error:
            raise self._failed(name, error) from error

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
        try:
            self._fs.rm(self._path(folder), recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._failed(folder, error) from error

    def uploads(self) -> list[Upload]:
        """Multipart uploads of S3 below the root; other kinds of store have none."""
        if not hasattr(self._fs, "call_s3"):
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
        return CheckpointError(
            f"{self.url}/{name}: {type(error).__name__}: {str(error)[:200]}",
            remedy="check that the store is reachable and the credentials are valid",
        )


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
    return 0.0
