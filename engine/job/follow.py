"""Follow a job from anywhere that sees its run folder, without being in its way."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from engine.errors import MissingError
from engine.job.state import FINAL
from engine.job.view import JobView, read_view

_EVERY_S = 0.5
_STALE_S = 15.0


def follow(folder: Path, *, every_s: float = _EVERY_S) -> Iterator[JobView]:
    """Every new view until the job ends. MissingError if there is none, or its driver is gone."""
    view = read_view(folder)
    if view is None:
        raise MissingError(
            f"{folder}: no job was driven in it",
            remedy="name a run of `msctl train`, by its folder or by its name below --runs",
        )
    shown = 0.0
    while True:
        view = read_view(folder) or view
        if view.time_s != shown:
            shown = view.time_s
            yield view
        if view.state in FINAL:
            return
        if time.time() - view.time_s > _STALE_S and not _is_alive(view.driver_pid):
            raise MissingError(
                f"{folder.name}: nothing was heard of its driver for {_STALE_S:g} s",
                remedy="`msctl train` with the same --run folder takes over or continues",
            )
        time.sleep(every_s)


def _is_alive(pid: int) -> bool:
    """Whether the driver is a process of this machine; a driver elsewhere is not known."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid > 0
