"""What lies in a folder of checkpoints, and which of them may be loaded.

A folder is a checkpoint if its COMMITTED marker names a manifest that matches, and every file the
manifest lists is there with its exact size. `latest` is decided by looking, never by a pointer
file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.ckpt.manifest import (
    COMMITTED,
    MANIFEST_LIMIT,
    MARKER_LIMIT,
    PLAIN_NAME,
    Manifest,
    decode,
    decode_marker,
)
from engine.ckpt.store import Found, Store, is_url, open_store, split
from engine.errors import CheckpointError
from engine.spec.base import Noun
from engine.spec.layout import ParallelLayout

logger = logging.getLogger(__name__)

CLAIM = "ATTEMPT"
"""First file of a folder: which attempt owns it."""

ABANDONED = "ABANDONED"
"""File in a folder that training has gone back behind."""

_FOLDER = re.compile(r"step-(\d{8,12})(?:\.(\d{1,4}))?", re.ASCII)

State = Literal["committed", "abandoned", "damaged", "partial"]


class CheckpointInfo(Noun, frozen=True, kw_only=True):
    """One folder as `msctl ckpt list` shows it."""

    name: str
    step: int
    attempt: int
    state: State
    bytes: int
    files: int
    created_s: float
    layout: ParallelLayout | None = None
    why: str = ""
    where: str = ""
    val_loss: float | None = None
    """Held-out loss when it was saved, nats per token."""
    mark: str = ""
    """Why it was saved, if not because it was due."""


def folder_name(step: int, attempt: int = 1) -> str:
    """`step-00000100`; a second attempt at the same step is `step-00000100.2`."""
    return f"step-{step:08d}" + (f".{attempt}" if attempt > 1 else "")


def parse_folder(name: str) -> tuple[int, int] | None:
    """Step and attempt of a folder name, None for any other folder."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), int(match[2] or 1)) if match else None


def step_folders(store: Store) -> list[str]:
    """Checkpoint folders, complete or not, oldest step first."""
    named = [(parsed, name) for name in store.folders() if (parsed := parse_folder(name))]
    return [name for _, name in sorted(named)]


def read_manifest(store: Store, folder: str) -> Manifest:
    """The manifest of a committed checkpoint; raises CheckpointError if absent or torn."""
    where = f"{store.url}/{folder}"
    marker_bytes = store.get(f"{folder}/{COMMITTED}", MARKER_LIMIT)
    if marker_bytes is None:
        raise CheckpointError(
            f"{where}: no {COMMITTED} marker, so this is not a complete checkpoint",
            remedy=f"name a folder that `msctl ckpt list {store.url}` shows as committed",
        )
    marker = decode_marker(marker_bytes, where)
    if not PLAIN_NAME.fullmatch(marker.manifest):
        raise CheckpointError(
            f"{where}/{COMMITTED}: manifest = {marker.manifest[:80]!r} is not a plain name",
            remedy="resume from an older checkpoint",
        )
    body = store.get(f"{folder}/{marker.manifest}", min(MANIFEST_LIMIT, marker.bytes))
    if body is None:
        raise CheckpointError(
            f"{where}/{marker.manifest}: absent although {COMMITTED} names it",
            remedy="resume from an older checkpoint",
        )
    return decode(body, marker, where)


def missing_files(manifest: Manifest, present: list[Found]) -> list[str]:
    """Data files that are absent or have the wrong size, one sentence each."""
    sizes = {found.name: found.bytes for found in present}
    faults = []
    for entry in manifest.files:
        if entry.name not in sizes:
            faults.append(f"{entry.name} is absent")
        elif sizes[entry.name] != entry.bytes:
            faults.append(f"{entry.name} has {sizes[entry.name]} bytes instead of {entry.bytes}")
    return faults


def describe(store: Store, folder: str) -> CheckpointInfo:
    """The state of one folder, from its names, sizes and manifest; data are not read."""
    step, attempt = parse_folder(folder) or (0, 1)
    present = store.files(folder)
    size = sum(found.bytes for found in present)
    newest = max((found.changed_s for found in present), default=0.0)
    base = CheckpointInfo(
        name=folder, step=step, attempt=attempt, state="partial", bytes=size, files=len(present),
        created_s=newest, why=f"no {COMMITTED} marker", where=f"{store.url}/{folder}",
    )  # fmt: skip
    if COMMITTED not in {found.name for found in present}:
        return base
    try:
        manifest = read_manifest(store, folder)
        why = "; ".join(missing_files(manifest, present)[:3])
    except CheckpointError as error:
        return msgspec.structs.replace(base, state="damaged", why=error.what)
    state: State = "damaged" if why else "committed"
    if not why and ABANDONED in {found.name for found in present}:
        state, why = "abandoned", "training was resumed from a step before it"
    return msgspec.structs.replace(
        base, state=state, why=why,
        created_s=manifest.created_s, layout=manifest.meta.layout, **_remarks(manifest.meta.extra),
    )  # fmt: skip


def _remarks(extra: dict[str, Any]) -> dict[str, Any]:
    """What the trainer wrote down with a save, as far as it is of the right type."""
    value, why = extra.get("val_loss"), extra.get("why")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = None
    return {
        "val_loss": None if value is None else float(value),
        "mark": why[:80] if isinstance(why, str) and why not in ("interval", "end") else "",
    }


def require_place(where: str | Path) -> None:
    """CheckpointError unless this is a folder, if only an empty one.

    Object stores have no empty folders: a prefix without objects counts as absent, since it looks
    like a misspelled one.
    """
    if not str(where).strip():
        raise CheckpointError("no place is named", remedy="name a run or a folder of checkpoints")
    if open_store(where).exists():
        return
    if not is_url(where) and Path(where).exists():
        raise CheckpointError(
            f"{where} is a file", remedy="name a run or a folder of checkpoints, not a file"
        )
    what = "nothing lies there" if is_url(where) else "no such folder"
    raise CheckpointError(
        f"{where}: {what}", remedy="name a run or a folder of checkpoints, as a path or a URL"
    )


def catalog(root: str | Path) -> list[CheckpointInfo]:
    """Every checkpoint folder under a root, oldest step first."""
    store = open_root(root)
    return [describe(store, folder) for folder in step_folders(store)]


def valid_folders(store: Store) -> Iterator[str]:
    """Committed and complete checkpoints, newest first; says which newer ones it passes over."""
    for folder in reversed(step_folders(store)):
        info = describe(store, folder)
        if info.state == "committed":
            yield folder
        elif info.state != "abandoned":
            where = f"{store.url}/{folder}"
            logger.warning("%s is %s and passed over: %s", where, info.state, info.why)


def folder_of_step(store: Store, step: int) -> str | None:
    """The newest complete checkpoint of a step, one that was abandoned if there is no other."""
    found = None
    for folder in reversed(step_folders(store)):
        if (parse_folder(folder) or (0, 0))[0] == step:
            state = describe(store, folder).state
            if state == "committed":
                return folder
            found = found or (folder if state == "abandoned" else None)
    return found


def begin_branch(store: Store, folder: str) -> list[str]:
    """Training goes on from a checkpoint by a person's wish: later ones are passed over then.

    They stay, each with a file that says so; without that file they count again. Returns them.
    """
    step, attempt = parse_folder(folder) or (0, 1)
    if any(found.name == ABANDONED for found in store.files(folder)):
        store.remove([f"{folder}/{ABANDONED}"])
    after = [f for f in step_folders(store) if (parse_folder(f) or (0, 0)) > (step, attempt)]
    later = [other for other in after if describe(store, other).state == "committed"]
    for other in later:
        store.create(f"{other}/{ABANDONED}", f"resumed from {folder}\n".encode())
    return later


def latest(root: str | Path) -> str | Path | None:
    """The newest checkpoint that is committed and complete, None if there is none."""
    store = open_root(root)
    folder = next(valid_folders(store), None)
    if folder is None:
        return None
    return Path(store.url) / folder if isinstance(root, Path) else f"{store.url}/{folder}"


def open_root(where: str | Path) -> Store:
    """The store of a folder of checkpoints, or of the `ckpt` folder of a run."""
    store = open_store(where)
    folders = store.folders()
    if "ckpt" in folders and not any(parse_folder(name) for name in folders):
        return open_store(f"{str(where).rstrip('/')}/ckpt")
    return store


def find(where: str | Path, *, valid: bool = True) -> tuple[Store, str]:
    """A checkpoint named by its own location, or the newest one of a run or folder of them.

    With `valid` false, the newest one that has a marker counts, damaged or not.
    """
    root, folder = split(where)
    if parse_folder(folder):
        return open_store(root), folder
    store = open_root(where)
    if valid:
        newest = next(valid_folders(store), None)
    else:
        newest = next((f for f in reversed(step_folders(store)) if _marked(store, f)), None)
    if newest is not None:
        return store, newest
    above = open_store(root)
    if _marked(above, folder):
        return above, folder
    raise CheckpointError(
        f"{where}: no committed checkpoint here",
        remedy="name a checkpoint, or a run or folder that holds `step-...` folders",
    )


def _marked(store: Store, folder: str) -> bool:
    return any(found.name == COMMITTED for found in store.files(folder))
