"""Files that a plan leaves behind: predicted events, their picture, the schedule as a text grid.

The events have the schema of measured ones, so that whatever reads a run reads a plan.
"""

from pathlib import Path

from engine.errors import LayoutError
from engine.events.chrome import chrome_trace
from engine.plan.draw import svg, write
from engine.plan.raster import png
from engine.plan.report import Candidate
from engine.plan.search import describe
from engine.plan.setup import Job, PlanLayout
from engine.plan.simulate import predicted_events
from engine.schedule.build import build
from engine.schedule.grid import grid
from engine.spec.base import Noun

_GRID_WIDTH = 96


class Written(Noun, frozen=True, kw_only=True):
    """A file that was written, and what is in it."""

    path: str
    what: str


def write_trace(path: Path, job: Job, layout: PlanLayout) -> Written:
    """The predicted step as a Chrome trace (Perfetto opens it)."""
    events = predicted_events(job, layout)
    write(path, b"".join(chrome_trace(events)))
    return Written(path=str(path), what=f"{len(events)} predicted events as a Chrome trace")


def write_plot(path: Path, job: Job, layout: PlanLayout) -> Written:
    """The predicted step as a picture, SVG or PNG by the file's name."""
    if path.suffix not in (".svg", ".png"):
        raise LayoutError(
            f"--plot {path}: pictures are written as SVG or PNG",
            remedy="give a name that ends in .svg or .png",
        )
    events, title = predicted_events(job, layout), describe(layout)
    write(path, png(events, title=title) if path.suffix == ".png" else svg(events, title=title))
    return Written(path=str(path), what="the predicted step as a picture")


def schedule_text(best: Candidate) -> str:
    """The order of work of the chosen layout, one row a stage, forward 1 and backward 2 units."""
    layout = best.layout
    microbatches = min(best.microbatches, 2 * layout.pp)
    return grid(build(layout.schedule, layout.pp, layout.vpp, microbatches), width=_GRID_WIDTH)
