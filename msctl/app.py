"""The root command: which commands there are, and what each way of ending is called.

Only the command that was asked for is imported, so that `msctl --help` costs no more than typer.
Here is the one `except EngineError` of the project, and the table of exit codes.
"""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple

import typer

from engine.errors import EngineError, MissingError, RunFailed
from engine.spec.problem import Problem
from msctl import __version__
from msctl.flags import CONTEXT, Flags, JsonFlag, QuietFlag, VerboseFlag, help_if_bare
from msctl.ui import AfterAnswer, print_error


class ExitCode(IntEnum):
    """How msctl ends; changing one is a breaking change."""

    DONE = 0
    BUG = 1
    USAGE = 2
    INPUT = 3
    BAD_VERDICT = 4
    MISSING = 5
    RUN_FAILED = 6
    INTERRUPTED = 130


class CommandEntry(NamedTuple):
    """A command: its name, where it is, and the first line of its help."""

    name: str
    module: str
    attribute: str
    line: str


COMMANDS = (
    CommandEntry("plan", "msctl.commands.plan", "plan",
                 "Rank the layouts of a model on a cluster by predicted step time"),
    CommandEntry("selfcheck", "msctl.commands.selfcheck", "selfcheck",
                 "Check whether this machine is fit to train"),
    CommandEntry("train", "msctl.commands.train", "train",
                 "Train a model from a recipe"),
    CommandEntry("ckpt", "msctl.commands.ckpt", "app",
                 "List, verify, reshard, convert and prune checkpoints"),
    CommandEntry("diagnose", "msctl.commands.diagnose", "diagnose",
                 "Say where a run's time went and what is wrong with it"),
)  # fmt: skip
"""All commands, in the order of a run."""

EPILOG = (
    "Exit codes: 0 done · 1 a bug in msctl · 2 wrong command line · 3 an input is wrong · "
    "4 the verdict is bad · 5 this machine lacks something · 6 the run failed · 130 interrupted"
)

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""typer's UsageError: public only as the base of BadParameter, wherever click lives."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code and never raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    _survive_any_locale()
    try:
        ended = build_app(given)(given, prog_name="msctl", standalone_mode=False)
        return int(ended) if isinstance(ended, int) else ExitCode.DONE
    except AfterAnswer as late:
        as_json = False
        code, kind, problems = _told(late.error)
    except EngineError as error:
        code, kind, problems = _told(error)
    except _USAGE_ERROR as error:
        code, kind, problems = ExitCode.USAGE, "UsageError", [_usage(error)]
    except (KeyboardInterrupt, typer.Abort):
        code, kind, problems = ExitCode.INTERRUPTED, "Interrupted", [_INTERRUPTED]
    except SystemExit as error:  # typer's completion ends this way
        return error.code if isinstance(error.code, int) else ExitCode.DONE
    except Exception as error:
        traceback.print_exc()
        code, kind, problems = ExitCode.BUG, "Bug", [_bug(error)]
    print_error(kind, problems, json=as_json, code=code)
    return code


def _told(error: EngineError) -> tuple[ExitCode, str, list[Problem]]:
    return exit_code_of(error), _kind_of(error), _problems_of(error)


def exit_code_of(error: EngineError) -> ExitCode:
    """3 for a wrong input, 5 for a lack of this machine, 6 for a failed run."""
    if isinstance(error, MissingError):
        return ExitCode.MISSING
    return ExitCode.RUN_FAILED if isinstance(error, RunFailed) else ExitCode.INPUT


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The root command with the wanted command in full and the others by name and first line."""
    app = typer.Typer(
        name="msctl",
        help=_root.__doc__,
        epilog=EPILOG,
        rich_markup_mode="markdown",
        context_settings=CONTEXT,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    completing = "_MSCTL_COMPLETE" in os.environ
    for entry in COMMANDS:
        if entry.name == wanted or completing:
            _register(app, entry)
        else:
            app.command(entry.name, help=entry.line)(_not_loaded)
    return app


def _register(app: typer.Typer, entry: CommandEntry) -> None:
    """Import a command and hang it in."""
    command = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name, context_settings=CONTEXT)(command)


def _root(
    ctx: typer.Context,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan, check, train, checkpoint and diagnose LLM training on many GPUs."""
    ctx.obj = Flags(json=json, quiet=quiet, verbose=verbose)
    if version:
        typer.echo(f"msctl {__version__}")
        raise typer.Exit
    help_if_bare(ctx)


def _not_loaded() -> None:
    raise AssertionError("a command that was not asked for was run")


_INTERRUPTED = Problem(
    keys=(), what="interrupted", remedy="run the command again to start over or to resume"
)


def _kind_of(error: EngineError) -> str:
    """The name of the error's kind in engine/errors.py, whatever subclass was raised."""
    kinds = (kind for kind in type(error).__mro__ if kind.__module__ == EngineError.__module__)
    return next(kinds).__name__


def _problems_of(error: EngineError) -> list[Problem]:
    """Every fault that an error carries; usually one."""
    several = [p for p in getattr(error, "problems", ()) if isinstance(p, Problem)]
    return several or [Problem(keys=(), what=error.what, remedy=error.remedy)]


def _usage(error: Exception) -> Problem:
    """A wrong command line in our words for where to look."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "msctl"
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    return Problem(keys=(), what=message, remedy=f"see what is accepted with `{command} --help`")


def _bug(error: Exception) -> Problem:
    """An exception that nobody expected."""
    return Problem(
        keys=(),
        what=f"a bug in msctl {__version__}: {type(error).__name__}: {error}",
        remedy=f"report it with the traceback above and the command line to {_tracker()}",
    )


def _tracker() -> str:
    """Where the installed package says that faults are reported."""
    from importlib import metadata

    try:
        links = metadata.metadata("msctl").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        links = []
    found = [link.split(",", 1)[1].strip() for link in links if link.startswith("Issues,")]
    return found[0] if found else "the project's issue tracker"


def _survive_any_locale() -> None:
    """Replace what a non-UTF-8 terminal cannot show instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
