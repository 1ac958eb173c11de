"""What a running job shows: one noun, one small file in the run folder, renewed while it runs.

`msctl train --follow` and the OpenMetrics page read it; so does whoever has the folder.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from engine.job.state import JobState, NodeState
from engine.spec.base import Noun, Size, doc

if TYPE_CHECKING:
    from engine.job.driver import Driver

FILE = "job.json"
_EVERY_S = 0.5
_LIMIT = 16 << 20
_SHOWN = 20


class NodeView(Noun, frozen=True, kw_only=True):
    """One node."""

    node: str
    state: NodeState
    ranks: tuple[int, ...] = ()
    doing: Annotated[str, doc("what its slowest rank is in, and for how long")] = ""
    load: float = 0.0
    memory_free_bytes: Size = 0
    received_bytes: Size = 0
    sent_bytes: Size = 0
    gpu_temperature: int | None = None
    ecc_uncorrected: int | None = None
    clock_off_s: Annotated[float, doc("its wall clock against the driver's, transit included")] = (
        0.0
    )
    note: str = ""


class JobView(Noun, frozen=True, kw_only=True):
    """The whole job."""

    job: str
    state: JobState
    attempt: int
    driver_pid: Size
    time_s: float
    step: Size
    total_steps: Size
    loss: float | None = None
    mfu: float = 0.0
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    eta_s: float | None = None
    restarts: Size = 0
    nodes: tuple[NodeView, ...] = ()
    incidents: Annotated[tuple[str, ...], doc("the newest, one sentence each")] = ()


def view_of(driver: "Driver") -> JobView:
    """The job as its driver sees it now."""
    last, recipe = driver.last_metrics, driver.recipe
    total = recipe.train.steps
    pace = driver.sight.pace.usual_s
    done = last.step if last else 0
    return JobView(
        job=driver.folder.name, state=driver.state, attempt=driver.attempt,
        driver_pid=os.getpid(), time_s=time.time(), step=done, total_steps=total,
        loss=last.loss if last else None, mfu=last.mfu if last else 0.0,
        tokens_per_s=last.tokens_per_s if last else 0.0, step_s=pace,
        eta_s=(total - done) * pace if pace else None,
        restarts=sum(r.decision is not None for r in driver.recoveries),
        nodes=tuple(_node(driver, name) for name in driver.nodes.all),
        incidents=tuple(r.incident.what for r in driver.recoveries[-_SHOWN:]),
    )  # fmt: skip


def _node(driver: "Driver", name: str) -> NodeView:
    node = driver.nodes.all[name]
    beat = node.beat
    counters = beat.counters if beat else None
    oldest = max((r for r in beat.ranks if r.doing), key=lambda r: r.age_s, default=None) if (
        beat
    ) else None  # fmt: skip
    return NodeView(
        node=name, state=node.state, ranks=node.ranks, note=node.note,
        doing=f"{oldest.doing} for {oldest.age_s:.1f} s" if oldest else "",
        load=counters.load if counters else 0.0,
        memory_free_bytes=counters.memory_free_bytes if counters else 0,
        received_bytes=counters.received_bytes if counters else 0,
        sent_bytes=counters.sent_bytes if counters else 0,
        gpu_temperature=counters.gpu_temperature if counters else None,
        ecc_uncorrected=counters.ecc_uncorrected if counters else None,
        clock_off_s=node.clock_off_s,
    )  # fmt: skip


class ViewWriter:
    """Renews the file, at most twice a second unless something important happened."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether readers should have news by now."""
        return time.monotonic() - self._at >= _EVERY_S

    def write(self, view: JobView) -> bool:
        """Whether it could be written. A full or missing disk must not end a driver."""
        self._at = time.monotonic()
        fresh = self._path.with_suffix(".tmp")
        try:
            fresh.write_bytes(msgspec.json.encode(view) + b"\n")
            os.replace(fresh, self._path)
        except OSError:
            return False
        return True


def read_view(folder: Path) -> JobView | None:
    """The job's last word, None if there is none or it cannot be read."""
    try:
        with (folder / FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_LIMIT), type=JobView)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
