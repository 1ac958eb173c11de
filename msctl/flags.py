"""Options that every command has, declared once, accepted before and after the command.

    @command_flags
    def plan(ui: Ui, model: Annotated[str, typer.Option(help="...")] = "175b") -> None:
        '''Search the fastest layout of a model on a cluster ...'''

`msctl/app.py` registers the function; typer sees its own options plus `--json`, `-q` and `-v`. A
command with sub-commands makes `app = command_group("What the group is for")` and puts
`@app.command()` above `@command_flags` on each function.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from engine import log
from engine.errors import EngineError
from engine.spec.base import Noun
from msctl.ui import AfterAnswer, Ui

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document with SI units.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result and errors.")]
VerboseFlag = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="Show the log: -v INFO, -vv DEBUG."
    ),
]
CONTEXT = {"help_option_names": ["-h", "--help"]}


class Flags(Noun, frozen=True, kw_only=True):
    """The common options as given at one level of the command line."""

    json: bool = False
    quiet: bool = False
    verbose: int = 0

    def merged(self, other: "Flags") -> "Flags":
        """Given before or after the command: either counts."""
        return Flags(
            json=self.json or other.json,
            quiet=self.quiet or other.quiet,
            verbose=self.verbose + other.verbose,
        )


def complete_recipe(incomplete: str) -> list[str]:
    """Folders and TOML files that continue what is typed."""
    return _files(incomplete, lambda path: path.suffix == ".toml")


def complete_run(incomplete: str) -> list[str]:
    """Folders that continue what is typed."""
    return _files(incomplete, lambda path: False)


RecipePath = Annotated[
    Path, typer.Argument(help="Recipe file (TOML).", autocompletion=complete_recipe)
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key, e.g. layout.tp=4."),
]


def command_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--json -q -v` and, as its first argument, a `Ui`."""
    # Not typing.get_type_hints: on Python 3.10 it wraps what defaults to None and hides the option.
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def wrapper(ctx: typer.Context, json: bool, quiet: bool, verbose: int, **given: Any) -> None:
        flags = Flags(json=json, quiet=quiet, verbose=verbose)
        level: Any = ctx.parent
        while level is not None:
            flags = flags.merged(level.obj) if isinstance(level.obj, Flags) else flags
            level = level.parent
        _configure_log(flags)
        ui = Ui(json=flags.json, quiet=flags.quiet, verbose=flags.verbose)
        try:
            command(ui, **given)
        except typer.Exit:
            ui.close()
            raise
        except typer.BadParameter as error:  # whose help to name
            error.ctx = error.ctx or ctx
            raise
        except EngineError as error:  # only marked here; `app.py` tells it
            if not ui.stands:
                raise
            ui.close()
            raise AfterAnswer(error) from error
        except KeyboardInterrupt:  # typer would turn it into a silent exit
            raise typer.Abort from None
        ui.close()

    keyword = inspect.Parameter.KEYWORD_ONLY
    common = [
        inspect.Parameter("ctx", keyword, annotation=typer.Context),
        *(p.replace(kind=keyword) for p in own),
        inspect.Parameter("json", keyword, annotation=JsonFlag, default=False),
        inspect.Parameter("quiet", keyword, annotation=QuietFlag, default=False),
        inspect.Parameter("verbose", keyword, annotation=VerboseFlag, default=0),
    ]
    wrapper.__signature__ = inspect.Signature(common)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in common}
    del wrapper.__wrapped__
    return wrapper


def command_group(text: str) -> typer.Typer:
    """A command with sub-commands; alone it prints its help."""
    group = typer.Typer(
        help=text, rich_markup_mode="markdown", context_settings=CONTEXT,
        add_completion=False, pretty_exceptions_enable=False,
    )  # fmt: skip

    @group.callback(invoke_without_command=True)
    def remember(
        ctx: typer.Context,
        json: JsonFlag = False,
        quiet: QuietFlag = False,
        verbose: VerboseFlag = 0,
    ) -> None:
        own = Flags(json=json, quiet=quiet, verbose=verbose)
        above = ctx.parent.obj if ctx.parent is not None else None
        ctx.obj = own if above is None or isinstance(above, Flags) else above
        help_if_bare(ctx)

    remember.__doc__ = text
    return group


def help_if_bare(ctx: typer.Context) -> None:
    """Print a group's help and end well if no sub-command was named."""
    if ctx.invoked_subcommand is None:
        text = ctx.get_help()
        if text:  # typer with rich prints by itself and returns nothing
            typer.echo(text)
        raise typer.Exit


def _configure_log(flags: Flags) -> None:
    """Level of the log on stderr: WARNING, -v INFO, -vv DEBUG, -q ERROR."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(flags.verbose, logging.DEBUG)
    log.configure("driver", level=logging.ERROR if flags.quiet else level)


def _files(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """Entries of the folder that `incomplete` points into; folders end with a slash."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    try:
        entries = sorted(folder.iterdir())[:1000]
    except OSError:
        return []
    kept = [e for e in entries if (e.is_dir() or wanted(e)) and not e.name.startswith(".")]
    return [f"{e}/" if e.is_dir() else str(e) for e in kept if str(e).startswith(incomplete)]
