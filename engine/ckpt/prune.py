"""Which checkpoints may go, and how they go: marker first, so that a crash half-way leaves no lie.

The newest valid checkpoint is never removed, whatever the policy says. Folders without a marker are
removed only when their writer is known to be dead or has been silent for longer than a grace
period.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.ckpt.catalog import (
    CLAIM,
    CheckpointInfo,
    describe,
    open_root,
    parse_folder,
    step_folders,
)
from engine.ckpt.manifest import COMMITTED
from engine.ckpt.store import DRAFT, Store, Upload, open_store
from engine.errors import EngineError
from engine.spec.base import NonNegative, Noun, Size


class Retention(Noun, frozen=True, kw_only=True):
    """What to keep. A checkpoint is kept if any rule wants it."""

    last: Annotated[int, Meta(ge=1, description="newest valid checkpoints to keep")] = 3
    every_h: Annotated[NonNegative, Meta(description="also one per so many hours; 0 = none")] = 0.0
    every_steps: Annotated[Size, Meta(description="also steps divisible by this; 0 = none")] = 0
    best: Annotated[Size, Meta(description="also the ones with the lowest held-out loss")] = 0
    marked: Annotated[Size, Meta(description="also the newest saved for a loss spike")] = 1
    grace_s: Annotated[NonNegative, Meta(description="silence after which a writer is dead")] = (
        21600.0
    )


class Decision(Noun, frozen=True, kw_only=True):
    """What happens to one folder, and why."""

    name: str
    step: int
    state: str
    bytes: int
    action: Literal["keep", "remove"]
    why: str
    upload: str = ""
    """Id of an unfinished write, if it is one and not a folder; `name` is then `folder/file`."""


def plan_prune(
    root: str | Path, retention: Retention, *, now_s: float | None = None
) -> list[Decision]:
    """Decide for every folder under a root, oldest first; changes nothing."""
    store = open_root(root)
    now = time.time() if now_s is None else now_s
    folders = _decide_folders(store, retention, now)
    return folders + _decide_uploads(store, folders, retention.grace_s, now)


def _decide_folders(store: Store, retention: Retention, now: float) -> list[Decision]:
    infos = [describe(store, folder) for folder in step_folders(store)]
    reasons = _wanted([info for info in infos if info.state == "committed"], retention)
    return [_decide(store, info, reasons, retention.grace_s, now) for info in infos]


def prune(root: str | Path, decisions: Sequence[Decision]) -> list[str]:
    """Carry out a plan and return the folders removed.

    Looks at the store again first: if no checkpoint that stays is valid any more, nothing is
    removed.
    """
    store = open_root(root)
    kept = [d.name for d in decisions if d.action == "keep" and d.state == "committed"]
    going = [d for d in decisions if d.action == "remove"]
    going.sort(key=lambda d: not d.upload)  # their parts may keep a server from removing a folder
    safe = any(describe(store, name).state == "committed" for name in reversed(kept))
    removed = []
    for decision in going:
        if decision.upload:
            store.abort(Upload(decision.name, decision.upload, 0.0))
            removed.append(decision.name)
            continue
        if decision.state == "committed" and not safe:
            continue
        if decision.state == "partial" and describe(store, decision.name).state != "partial":
            continue
        remove_checkpoint(store, decision.name)
        removed.append(decision.name)
    return removed


def remove_checkpoint(store: Store, folder: str) -> None:
    """Take back the commit, durably; then delete the data, and last what says whose they were."""
    store.remove([f"{folder}/{COMMITTED}"])
    names = [found.name for found in store.files(folder)]
    data = [f"{folder}/{name}" for name in names if not name.startswith(CLAIM)]
    if data:
        store.remove(data)
    store.remove_folder(folder)


def keep_newest(root: str | Path, last: int) -> list[str]:
    """The trainer's retention after a commit: keep `last` valid ones, 0 = all; what went."""
    if last == 0:
        return []
    decisions = _decide_folders(open_root(root), Retention(last=last), time.time())
    mine = ("committed", "damaged")  # what was abandoned, a person may still want
    return prune(root, [d for d in decisions if d.state in mine])


def _wanted(valid: Sequence[CheckpointInfo], retention: Retention) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if valid:
        reasons[valid[-1].name] = "the newest valid one is never removed"
    for info in valid[-retention.last :]:
        reasons.setdefault(info.name, f"one of the last {retention.last}")
    if retention.every_steps:
        for info in valid:
            if info.step % retention.every_steps == 0:
                reasons.setdefault(info.name, f"step divisible by {retention.every_steps}")
    judged = sorted((i for i in valid if i.val_loss is not None), key=lambda i: i.val_loss or 0.0)
    for rank, info in enumerate(judged[: retention.best]):
        reasons.setdefault(info.name, f"number {rank + 1} by held-out loss, {info.val_loss:.4g}")
    spikes = [info for info in valid if info.mark == "loss spike"]
    for info in spikes[-retention.marked :] if retention.marked else ():
        reasons.setdefault(info.name, "saved for a loss spike")
    for info in _spaced(valid, retention.every_h * 3600):
        reasons.setdefault(info.name, f"first in {retention.every_h:g} h")
    return reasons


def _spaced(valid: Iterable[CheckpointInfo], spacing_s: float) -> list[CheckpointInfo]:
    kept: list[CheckpointInfo] = []
    for info in valid if spacing_s else ():
        if not kept or info.created_s - kept[-1].created_s >= spacing_s:
            kept.append(info)
    return kept


def _decide(
    store: Store, info: CheckpointInfo, reasons: dict[str, str], grace_s: float, now: float
) -> Decision:
    action: Literal["keep", "remove"] = "keep"
    if info.state == "committed":
        why = reasons.get(info.name, "")
        if not why:
            action, why = "remove", "no rule keeps it"
    elif info.state == "abandoned":
        action, why = "remove", info.why
    elif info.state == "damaged":
        why = f"damaged, for a person to look at: {info.why}"
    else:
        dead, why = _writer_dead(store, info, grace_s, now)
        action = "remove" if dead else "keep"
    return Decision(
        name=info.name, step=info.step, state=info.state, bytes=info.bytes, action=action, why=why
    )


def _decide_uploads(
    store: Store, folders: Sequence[Decision], grace_s: float, now: float
) -> list[Decision]:
    """Unfinished writes go with their folder, or when nobody can be at them any more.

    A draft may be of a marker that a whole checkpoint is being given: only its age counts.
    """
    known = {decision.name: decision for decision in folders}
    found = []
    for upload in store.uploads():
        folder = upload.name.partition("/")[0]
        parsed, owner = parse_folder(folder), known.get(folder)
        if parsed is None:
            continue  # not one of our names: somebody else's
        action: Literal["keep", "remove"] = "keep"
        why = "being written, or its writer died less than the grace period ago"
        if owner and owner.state == "committed" and upload.id != DRAFT:
            action, why = "remove", "its checkpoint was committed without it"
        elif (owner and owner.action == "remove") or now - upload.started_s > grace_s:
            action, why = "remove", f"begun {(now - upload.started_s) / 3600:.1f} h ago, never done"
        found.append(
            Decision(
                name=upload.name, step=parsed[0], state="upload", bytes=0, action=action, why=why,
                upload=upload.id,
            )
        )  # fmt: skip
    return found


def _writer_dead(
    store: Store, info: CheckpointInfo, grace_s: float, now: float
) -> tuple[bool, str]:
    if not _is_ours(store, info.name):
        return False, f"no {CLAIM} of ours in it: another program's folder"
    age = now - info.created_s
    if age > grace_s:
        return True, f"never committed, silent for {age / 3600:.1f} h"
    try:
        note = msgspec.json.decode(store.get(f"{info.name}/{CLAIM}", 4096) or b"{}", type=dict)
        host, pid = note.get("host"), note.get("pid")
    except (msgspec.MsgspecError, EngineError):
        host, pid = None, None
    if host == platform.node() and isinstance(pid, int) and pid > 0 and not _alive(pid):
        return True, f"never committed, its writer (process {pid}) is gone"
    return False, "being written, or its writer died less than the grace period ago"


def _is_ours(store: Store, folder: str) -> bool:
    """Whether a save of ours began a folder; an empty one is what a removal leaves at its end."""
    names = [found.name for found in store.files(folder)]
    if names:
        return any(name.startswith(CLAIM) for name in names)
    return not open_store(f"{store.url}/{folder}").folders()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
