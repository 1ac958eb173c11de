"""`msctl train`: start a run from a recipe on this machine and follow it."""

import shlex
import statistics
from pathlib import Path
from typing import Annotated

import typer

from engine.errors import RecipeError
from engine.job.ablate import Ladder, ablate
from engine.job.data import prepare_data
from engine.job.drills import drill_report
from engine.job.driver import Driver, Watch
from engine.job.dry import DryRun, dry_run
from engine.job.fit import check_machine, check_resume
from engine.job.run import RunResult, run_folder, valid_resume
from engine.job.where import Where, known, place_of, preview
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe
from engine.train.drill import check_faults, parse_faults
from engine.units import show_bytes, show_count, show_number, show_ratio, show_seconds
from msctl.commands.live import Live
from msctl.commands.train_show import show_drill, show_start, watch_run
from msctl.flags import RecipePath, Sets, command_flags
from msctl.ui import Ui


@command_flags
def train(
    ui: Ui,
    recipe: RecipePath,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder; default RUNS/NAME of the recipe.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    steps: Annotated[
        int, typer.Option(min=0, help="Steps in this invocation; 0 = to the recipe's end.")
    ] = 0,
    resume: Annotated[
        str, typer.Option(help="Checkpoint to continue from: auto, never or a step.")
    ] = "auto",
    set_: Sets = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print layout, memory and schedule; start nothing.")
    ] = False,
    ablation: Annotated[
        bool,
        typer.Option("--ablate", help="Measure each technique of the paper's Table 3 in turn."),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of --ablate.")] = 3,
    on: Annotated[
        str,
        typer.Option("--on", help="Where its nodes are: local, slurm, k8s, or join by themselves."),
    ] = "local",
    drill: Annotated[
        list[str] | None,
        typer.Option("--drill", help="Fault after N steps: KIND:rank=R@step=N; may be repeated."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Watch a run that goes on: RECIPE is its name then.")
    ] = False,
) -> None:
    """Train a model from a recipe.

    Starts one rank per device of the layout on this machine, shows progress, and leaves a run
    folder with metrics, events, logs and checkpoints. A run that exists is continued from its
    newest valid checkpoint. Ctrl-C saves and exits with 130. What fails is mended as the recipe's
    [job] section says: evidence is kept, nodes are checked and replaced, training goes on.

    *Examples*

    - `msctl train recipes/tiny.toml`
    - `msctl train recipes/tiny.toml --run runs/try --steps 20 --set optimizer.lr=1e-3`
    - `msctl train recipes/175b.toml --dry-run`
    - `msctl train recipes/tiny.toml --ablate --steps 8`
    - `msctl train recipes/tiny.toml --drill kill:rank=3@step=20`
    - `msctl train recipes/tiny.toml --on slurm --set train.store=redis --dry-run`
    - `msctl train tiny --follow`
    """
    if follow:
        watch_run(ui, run or runs / recipe)
        return
    where = known(on)
    faults = parse_faults(drill or [])
    loaded = load_recipe(recipe, set_ or [])
    check_faults(faults, loaded)
    _check_options(resume, where, ablation=ablation, drill=bool(faults), dry=dry)
    folder = run_folder(loaded, run, root=runs, resume=resume)
    if not ablation:
        check_resume(loaded, folder, resume, look=dry)
    if dry:
        _preview(ui, where, loaded, folder)
        return
    if where == "local":
        check_machine(loaded)
    if ablation:
        _ablate(ui, recipe, list(set_ or []), run or runs / f"{loaded.name}-ablation",
                rounds=rounds, steps=steps or 10)  # fmt: skip
        return
    _drive(ui, Driver(loaded, folder, Watch(), place=place_of(where, loaded), drills=faults),
           steps=steps, resume=resume, score=bool(faults))  # fmt: skip


def _drive(ui: Ui, driver: Driver, *, steps: int, resume: str, score: bool) -> None:
    """Run it to its end, show it meanwhile, and say how it went."""
    ui.note(prepare_data(driver.recipe))
    with Live(ui, driver.recipe) as live:
        driver.watch = Watch(on_step=live.step, on_note=live.note)
        result = driver.run(steps=steps, resume=resume)
    if score:
        _score(ui, driver, result)
    else:
        _end(ui, driver.folder, result)


def _check_options(wish: str, where: Where, *, ablation: bool, drill: bool, dry: bool) -> None:
    """What --resume does not know, and what --ablate would pass over in silence."""
    if not valid_resume(wish):
        raise RecipeError(f"--resume {wish}: not auto, never or a step", remedy="use --resume auto")
    others = {
        "--drill": drill, "--dry-run": dry, "--on": where != "local", "--resume": wish != "auto"
    }  # fmt: skip
    beside = [name for name, is_given in others.items() if is_given]
    if ablation and beside:
        raise RecipeError(
            f"--ablate does not go with {', '.join(beside)}",
            remedy="give --ablate without them",
        )


def _ablate(
    ui: Ui, recipe: Path, sets: list[str], folder: Path, *, rounds: int, steps: int
) -> None:
    """The ladder of the paper's Table 3, measured here."""
    ladder = ablate(recipe, sets, folder, rounds=rounds, steps=steps, tell=ui.note)
    ui.result(ladder, show_ladder)
    ui.note(f"wrote {folder}")


def _preview(ui: Ui, where: Where, recipe: Recipe, folder: Path) -> None:
    """Start nothing: the layout here, the script or manifest elsewhere."""
    if where == "local":
        ui.result(dry_run(recipe), show_dry_run)
    else:
        ui.result(preview(where, recipe, folder), show_start)


def _score(ui: Ui, driver: Driver, result: RunResult) -> None:
    """How a rehearsal went; code 4 if a fault was not mended."""
    report = drill_report(driver, result.ended)
    ui.result(report, show_drill)
    ui.note(f"wrote {driver.folder}; evidence of each fault is in its incidents/")
    ui.exit(not all(score.is_passed for score in report.scores))


def _end(ui: Ui, folder: Path, result: RunResult) -> None:
    """How a run went; code 130 if a person stopped it."""
    ui.result(result, show_result)
    ui.note(f"wrote {folder}")
    ui.hint(f"`msctl diagnose {shlex.quote(str(folder))}` says where the time went")
    if result.ended == "interrupted":
        raise typer.Exit(130)


def show_result(ui: Ui, result: RunResult) -> None:
    """One record: how far it came and how fast."""
    per_byte = result.val_loss_per_byte
    rows = [
        ("job", result.job),
        ("ended", result.ended),
        ("steps", f"{result.steps} of {result.total_steps}"),
        ("loss", "-" if result.loss is None else f"{result.loss:.4f} nats/token"),
        ("held-out loss", "-" if per_byte is None else f"{per_byte:.4f} nats/byte"),
        ("speed", f"{show_count(result.tokens_per_s)} tokens/s"),
        ("MFU", show_ratio(result.mfu)),
        ("time", show_seconds(result.seconds)),
    ]
    ui.table("", ("what", "value"), rows)


def show_ladder(ui: Ui, ladder: Ladder) -> None:
    """One row per technique, each on top of those above it."""
    first = ladder.rungs[0].median
    rows = []
    for rung in ladder.rungs:
        low, high = min(rung.tokens_per_s), max(rung.tokens_per_s)
        rows.append(
            (
                rung.name, show_count(rung.median), f"{show_count(low)}-{show_count(high)}",
                f"{rung.median / first:.2f}x", show_ratio(statistics.median(rung.mfu)),
                show_seconds(rung.exposed_tp_s), show_seconds(rung.exposed_pp_s),
                show_seconds(rung.exposed_dp_s),
            )
        )  # fmt: skip
    columns = ("rung", "tokens/s", "range", "speed", "MFU", "exposed tp", "pp", "dp")
    ui.table(f"median of {ladder.rounds} rounds of {ladder.steps} steps", columns, rows)


def show_dry_run(ui: Ui, dry: DryRun) -> None:
    """Layout, memory per stage and the schedule's first part."""
    ranks = show_number(dry.world, "rank")
    ui.sentence(f"{show_count(dry.model_params)} parameters, {ranks}: {dry.layout}")
    ui.sentence(f"{dry.microbatches} micro-batches a step, schedule {dry.schedule}, "
            f"bubble {show_ratio(dry.bubble)} of the ideal step")  # fmt: skip
    rows = [
        (s.stage, s.layers, show_count(s.params), s.in_flight, show_bytes(s.memory_bytes))
        for s in dry.stages
    ]
    ui.table("memory per rank", ("stage", "layers", "parameters", "in flight", "memory"), rows)
    for line in dry.grid.splitlines():
        ui.line(line)
