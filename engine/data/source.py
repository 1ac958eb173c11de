"""Which files a recipe's `data.source` names, in a fixed order.

A source is a file, a folder, a glob, an fsspec URL of any of these, or `python-stdlib:` (the source
code of the running interpreter's standard library). `documents.py` reads what is found here.
"""

import glob
import os
import stat
import sysconfig
from collections.abc import Iterator
from typing import Any, Literal

from engine.data.local import is_remote, local_path
from engine.errors import MissingError, RecipeError
from engine.spec.base import Noun
from engine.spec.recipe import DataSpec

Kind = Literal["text", "jsonl", "parquet", "megatron"]

STDLIB = "python-stdlib:"

_MOST_FILES = 1_000_000
_MAGIC = frozenset("*?[")
_COMPRESSED = {".gz": "gz", ".zst": "zst"}
_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".idx": "megatron", ".bin": "megatron",
}  # fmt: skip
_SKIPPED_FOLDERS = frozenset(("site-packages", "dist-packages", "__pycache__", "test", "tests"))
_STAMP_KEYS = (
    "ETag", "etag", "md5Hash", "checksum", "generation", "mtime", "LastModified", "last_modified",
    "modificationTime", "updated", "created",
)  # fmt: skip


class SourceFile(Noun, frozen=True, kw_only=True):
    """One file to read."""

    path: str
    """Local path, or the path inside the file system that `origin` opens."""
    size: int
    """Bytes on disk; for megatron those of the .bin file."""
    stamp: str
    """Differs when the content does: modification time or the store's own tag."""
    kind: Kind
    origin: str = ""
    """The URL that gives the file system; empty for local files."""
    named: bool = True
    """Given by name, and not found in a folder or by a glob."""

    @property
    def shown(self) -> str:
        """How messages name it."""
        scheme, sep, _ = self.origin.partition("://")
        return f"{scheme}{sep}{self.path.lstrip('/')}" if sep else self.path

    @property
    def compression(self) -> str:
        """`gz`, `zst` or nothing."""
        return _COMPRESSED.get(os.path.splitext(self.path)[1], "")


def resolve(spec: DataSpec) -> tuple[SourceFile, ...]:
    """All files of `data.source`: sources in their order, the files of each sorted by path.

    Raises RecipeError if a source names nothing, or files that cannot be mixed; MissingError if a
    URL needs a package that is absent.
    """
    found: dict[tuple[str, str], SourceFile] = {}
    for source in spec.source:
        for file in _expand(source, spec):
            found.setdefault((file.origin, file.path), file)
            if len(found) > _MOST_FILES:
                raise RecipeError(
                    f"data.source: {source} brings more than {_MOST_FILES} files",
                    remedy="pack them into fewer files, e.g. .jsonl or .parquet",
                )
    if not found:
        raise RecipeError(
            "data.source names no file",
            remedy=f'list files or folders, e.g. source = ["{STDLIB}"]',
        )
    files = tuple(found.values())
    if 0 < sum(f.kind == "megatron" for f in files) < len(files):
        text = next(f for f in files if f.kind != "megatron")
        raise RecipeError(
            f"data.source mixes token files (.bin/.idx) with text ({text.shown})",
            remedy="train on one kind; write both as .bin/.idx with one tokenizer to mix them",
        )
    return files


def _expand(source: str, spec: DataSpec) -> list[SourceFile]:
    """The files of one source; never empty."""
    if source == STDLIB:
        return list(_standard_library())
    if is_remote(source):
        return _remote(source, spec)
    path = local_path(source)
    if spec.format == "megatron" and os.path.isfile(path + ".idx"):
        path += ".idx"
    if os.path.lexists(path):
        if os.path.isdir(path):
            return _kept(_walk(path), f"folder {source}", spec)
        return [_local(path, spec, named=True, source=source)]
    if _MAGIC & set(path):
        hits = [hit for hit in sorted(glob.glob(path, recursive=True)) if os.path.isfile(hit)]
        return _kept(iter(hits), f"glob {source}", spec)
    raise RecipeError(
        f"data.source: {source} does not exist (looked in {os.path.dirname(path) or os.getcwd()})",
        remedy="correct the path; relative paths start from the folder that msctl runs in",
    )


def _standard_library() -> Iterator[SourceFile]:
    """Every *.py of the standard library, without installed packages and without its tests.

    Tests are left out because distributions differ in whether they ship them.
    """
    root = sysconfig.get_paths()["stdlib"]
    for path in _walk(root, skipped=_SKIPPED_FOLDERS):
        if path.endswith(".py"):
            info = os.stat(path)
            yield SourceFile(
                path=path, size=info.st_size, stamp=str(info.st_mtime_ns), kind="text", named=False
            )


def _walk(root: str, skipped: frozenset[str] = frozenset()) -> Iterator[str]:
    """Regular files below a folder, sorted; hidden ones and links to folders are left out."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(n for n in names if n not in skipped and not n.startswith("."))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def _kept(paths: Iterator[str], what: str, spec: DataSpec) -> list[SourceFile]:
    """Files found in a folder or by a glob that fit the format and are not empty."""
    files = []
    for path in paths:
        if not _fits(path, spec) or _is_second_of_pair(path, os.path.isfile(_partner(path))):
            continue
        file = _local(path, spec, named=False, source=path)
        if file.size:
            files.append(file)
        if len(files) > _MOST_FILES:
            break
    if not files:
        raise _nothing(what, spec)
    return files


def _nothing(what: str, spec: DataSpec) -> RecipeError:
    kind = "" if spec.format == "auto" else f" of format {spec.format}"
    return RecipeError(
        f"data.source: {what} holds no non-empty file{kind}",
        remedy="correct the path or the pattern" + (", or set data.format to auto" if kind else ""),
    )


def _local(path: str, spec: DataSpec, *, named: bool, source: str) -> SourceFile:
    kind = _kind(path, spec)
    if kind == "megatron":
        return _megatron(path, source, named=named)
    try:
        info = os.stat(path)
    except OSError as error:
        raise RecipeError(
            f"data.source: {source}: {error.strerror}", remedy="correct or repair the path"
        ) from error
    if not stat.S_ISREG(info.st_mode):
        raise RecipeError(
            f"data.source: {source} is neither a file nor a folder",
            remedy="name regular files or folders",
        )
    stamp = str(info.st_mtime_ns)
    return SourceFile(path=path, size=info.st_size, stamp=stamp, kind=kind, named=named)


def _megatron(path: str, source: str, *, named: bool) -> SourceFile:
    """A pair of token files, given by either of them; kept under the .idx file's name."""
    prefix = os.path.splitext(path)[0]
    try:
        index, tokens = os.stat(prefix + ".idx"), os.stat(prefix + ".bin")
    except OSError as error:
        raise RecipeError(
            f"data.source: {source}: {error.filename} does not exist",
            remedy=f"give both {prefix}.bin and {prefix}.idx",
        ) from error
    return SourceFile(
        path=prefix + ".idx",
        size=tokens.st_size,
        stamp=f"{index.st_mtime_ns}/{index.st_size}/{tokens.st_mtime_ns}",
        kind="megatron",
        named=named,
    )


def _remote(source: str, spec: DataSpec) -> list[SourceFile]:
    """Files behind an fsspec URL."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(source)
        entries, named = _listing(fs, path)
    except (ImportError, ValueError) as error:
        raise MissingError(
            f"data.source: {source}: {error}",
            remedy="install the package for this kind of store, e.g. `pip install 'msctl[s3]'`",
        ) from error
    except FileNotFoundError as error:
        why = error.__cause__
        if isinstance(why, OSError) and not isinstance(why, FileNotFoundError):
            raise _unreachable(source, why) from error  # a server that is not there has no files
        entries, named = [], True
    except Exception as error:
        raise _unreachable(source, error) from error
    files = []
    for entry in sorted(entries, key=lambda e: str(e["name"])):
        name, size = str(entry["name"]), int(entry.get("size") or 0)
        if not size or not (named or _fits(name, spec)):
            continue
        if _kind(name, spec) == "megatron":
            raise RecipeError(
                f"data.source: {source}: .bin/.idx files are memory-mapped and must be local",
                remedy="copy them to a local or shared folder",
            )
        files.append(
            SourceFile(
                path=name, size=size, stamp=_stamp(entry), kind=_kind(name, spec),
                origin=source, named=named,
            )
        )  # fmt: skip
    if not files:
        raise _nothing(source, spec)
    return files


def _unreachable(source: str, error: Exception) -> RecipeError:
    return RecipeError(
        f"data.source: {source}: {type(error).__name__}: {error}",
        remedy="check the URL, the network and the credentials",
    )


def _listing(fs: Any, path: str) -> tuple[list[dict[str, Any]], bool]:
    """Entries of the files that a path names, and whether it names a single file."""
    if _MAGIC & set(path) and not fs.exists(path):
        found = fs.glob(path, detail=True)
        return [e for e in found.values() if e["type"] == "file"], False
    info = fs.info(path)
    if info["type"] == "file":
        return [info], True
    found = fs.find(path, detail=True).values()
    return [e for e in found if not str(e["name"]).rpartition("/")[2].startswith(".")], False


def _stamp(entry: dict[str, Any]) -> str:
    """What a store says about the version of a file."""
    return "/".join(str(entry[key]) for key in _STAMP_KEYS if entry.get(key) is not None)


def _kind(path: str, spec: DataSpec) -> Kind:
    """How a file is read: by the recipe's format, else by its name."""
    if spec.format not in ("auto", "synthetic"):
        return spec.format  # type: ignore[return-value]
    kind = _KINDS.get(_suffix(path), "text")
    if kind == "megatron" and path.endswith(".bin") and not os.path.isfile(_partner(path)):
        return "text"
    return kind


def _fits(path: str, spec: DataSpec) -> bool:
    """Whether a file found in a folder belongs to the format asked for."""
    if spec.format in ("auto", "text"):
        return True
    return _KINDS.get(_suffix(path)) == spec.format


def _suffix(path: str) -> str:
    """The ending that tells the kind, that of the compression taken off."""
    stem, suffix = os.path.splitext(path)
    return os.path.splitext(stem)[1] if suffix in _COMPRESSED else suffix


def _partner(path: str) -> str:
    """The other file of a .bin/.idx pair."""
    stem, suffix = os.path.splitext(path)
    return stem + {".bin": ".idx", ".idx": ".bin"}.get(suffix, suffix)


def _is_second_of_pair(path: str, has_partner: bool) -> bool:
    """Whether a file is the .bin of a pair, which its .idx stands for."""
    return path.endswith(".bin") and has_partner
