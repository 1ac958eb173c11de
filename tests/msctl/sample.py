"""Commands that end in every way a command can, for the tests of app, flags and ui."""

from typing import Annotated

import typer

from engine.errors import (
    CheckpointError,
    LayoutError,
    MissingError,
    RecipeError,
    RunFailed,
    TraceError,
)
from engine.spec.base import Noun
from engine.spec.problem import Problem, RecipeProblems
from msctl.app import CommandEntry
from msctl.flags import Sets, command_flags, command_group
from msctl.ui import Ui

_KINDS = (RecipeError, LayoutError, TraceError, CheckpointError, MissingError, RunFailed)
KINDS = {kind.__name__: kind for kind in _KINDS}


class Answer(Noun, frozen=True, kw_only=True):
    """A result with a unit in its name and a value that JSON cannot hold."""

    step_s: float
    name: str = "[/etc] :smile: [model]"
    nothing: float = float("nan")


@command_flags
def plan(
    ui: Ui,
    how: Annotated[str, typer.Argument(help="How to end.")] = "well",
    sets: Sets = None,
    width: Annotated[int, typer.Option(help="Columns.")] = 3,
) -> None:
    """Do as told

    Examples:

    - `msctl plan well`
    """
    if how in KINDS:
        raise KINDS[how]("x.toml: [layout] tp = 6 \x1b[31m", remedy="set tp to 8")
    if how == "problems":
        raise RecipeProblems(
            tuple(
                Problem(keys=("k",), what=f"k = {i}", remedy=f"r{i}", where="f:1")
                for i in range(25)
            )
        )
    if how == "bug":
        raise ZeroDivisionError("oops")
    if how == "interrupt":
        raise KeyboardInterrupt
    ui.note("wrote runs/x")
    ui.hint("look at it")
    ui.warn("odd")
    ui.result(Answer(step_s=6.34), _show)
    if how == "twice":
        ui.result(Answer(step_s=1.0), _show)
    if how == "late":
        raise RecipeError("late", remedy="earlier")
    ui.exit(how == "bad")


def _show(ui: Ui, answer: Answer) -> None:
    ui.table("First", ["layout", "step [s]", "note"],
             [["8x8", answer.step_s, answer.name], ["4x4", None, "a\tb\nc\x1b[0m"]])  # fmt: skip
    ui.table("Second [x]", ["n"], [[1], [22]])
    ui.line("verdict: fine", style="bold")


app = command_group("Work on checkpoints")


@app.command("list")
@command_flags
def list_(ui: Ui, run: str) -> None:
    """List a run's checkpoints"""
    ui.result([run, ui.verbose], lambda ui, value: ui.line(f"{value} {ui.quiet}"))


@app.command("show")
@command_flags
def show(ui: Ui, run: str) -> None:
    """Show a checkpoint"""
    ui.line(run)


ENTRIES = (
    CommandEntry("plan", __name__, "plan", "Do as told"),
    CommandEntry("ckpt", __name__, "app", "Work on checkpoints"),
)
