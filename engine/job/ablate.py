"""The paper's ablation (Table 3) on a recipe: each technique added in turn, measured in turn.

Every rung is the recipe with a few more keys set. Rungs take turns over several rounds, so that a
machine's drift falls on all of them alike; what is reported is the median over rounds, with its
spread, and each rung's ratio to the first.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

from engine.diagnose.load import load_spans
from engine.diagnose.times import step_times
from engine.job.driver import Driver, Watch
from engine.job.run import run_folder
from engine.parallel.pieces import pieces_of
from engine.spec.base import Noun
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe


class Rung(Noun, frozen=True, kw_only=True):
    """One row of the ladder: what it adds, as `--set` texts."""

    name: str
    sets: tuple[str, ...]


class RungResult(Noun, frozen=True, kw_only=True):
    """What a rung measured; lists hold one number per round."""

    name: str
    sets: tuple[str, ...]
    tokens_per_s: tuple[float, ...]
    mfu: tuple[float, ...]
    exposed_tp_s: float
    """Tensor-parallel communication a rank waited for, seconds per step, mean over ranks."""
    exposed_pp_s: float
    exposed_dp_s: float

    @property
    def median(self) -> float:
        """Tokens per second."""
        return statistics.median(self.tokens_per_s)


class Ladder(Noun, frozen=True, kw_only=True):
    """All rungs, from the baseline up."""

    recipe: str
    rounds: int
    steps: int
    rungs: tuple[RungResult, ...]


def rungs_of(recipe: Recipe) -> tuple[Rung, ...]:
    """The ladder of a recipe, in the paper's order.

    The baseline has none of the techniques. Rungs that cannot do anything under this layout (tensor
    parallel overlap without tensor parallelism, say) are left out.
    """
    layout, model = recipe.layout, recipe.model
    base = (
        "model.block=serial", "model.window=0", "overlap.tp=false", "overlap.pp=false",
        "overlap.dp=false", "overlap.tp_pieces=1", "overlap.tp_halves=false",
        "train.ops=reference",
    )  # fmt: skip
    ladder = [Rung(name="baseline", sets=base)]
    window = max(1, model.seq * 3 // 8)
    ladder.append(Rung(name="+ parallel block", sets=("model.block=parallel",)))
    ladder.append(Rung(name="+ sliding window", sets=(f"model.window={window}",)))
    hidden = _tp_overlap(recipe)
    if hidden:
        ladder.append(Rung(name="+ TP overlap", sets=(*hidden, "overlap.tp=true")))
    if layout.pp > 1:
        ladder.append(Rung(name="+ PP overlap", sets=("overlap.pp=true",)))
    if layout.dp > 1:
        ladder.append(Rung(name="+ DP overlap", sets=("overlap.dp=true",)))
    ladder.append(Rung(name="+ operators", sets=("train.ops=auto",)))
    batch = f"batch.global_batch={3 * recipe.batch.global_batch}"
    ladder.append(Rung(name="+ LAMB, batch x3", sets=("optimizer.name=lamb", batch)))
    return tuple(ladder)


def _tp_overlap(recipe: Recipe) -> tuple[str, ...]:
    """How this recipe can hide tensor-parallel traffic: its own way, pieces, or else halves."""
    layout, wish = recipe.layout, recipe.overlap
    if layout.tp == 1:
        return ()
    pieces = wish.tp_pieces if wish.tp_pieces > 1 else pieces_of(recipe, cut=True)
    if not layout.sequence_parallel or wish.tp_halves:
        pieces = 1
    if pieces > 1:
        return (f"overlap.tp_pieces={pieces}",)
    if recipe.batch.micro_batch % 2 or recipe.train.recompute == "full":
        return ()
    return ("overlap.tp_halves=true",)


def ablate(
    path: Path,
    sets: list[str],
    folder: Path,
    *,
    rounds: int,
    steps: int,
    tell: Callable[[str], None] = lambda text: None,
) -> Ladder:
    """Run every rung `rounds` times for `steps` steps and say what each one brought.

    Run folders are kept below `folder`, one per rung and round.
    """
    recipe = load_recipe(path, sets)
    fixed = [
        f"train.steps={steps}", "optimizer.warmup_steps=0", "train.eval_batches=0",
        "checkpoint.every=0", "checkpoint.at_end=false", "monitor.tensorboard=false",
        "monitor.events=true",
    ]  # fmt: skip
    measured: dict[str, list[tuple[float, float, tuple[float, float, float]]]] = {}
    ladder = rungs_of(recipe)
    for number in range(rounds):
        so_far: list[str] = []
        for index, rung in enumerate(ladder):
            so_far += rung.sets
            tell(f"round {number + 1} of {rounds}: {rung.name}")
            one = load_recipe(path, [*sets, *so_far, *fixed])
            place = folder / f"rung-{index}-round-{number + 1}"
            measured.setdefault(rung.name, []).append(_measure(one, place))
    return Ladder(
        recipe=recipe.name,
        rounds=rounds,
        steps=steps,
        rungs=tuple(_result(rung, measured[rung.name]) for rung in ladder),
    )


def _measure(recipe: Recipe, folder: Path) -> tuple[float, float, tuple[float, float, float]]:
    """Tokens per second, MFU and exposed seconds (tp, pp, dp) of one short run."""
    fresh = run_folder(recipe, folder, root=folder.parent, resume="never")
    result = Driver(recipe, fresh, Watch()).run(steps=0, resume="never")
    if result.ended == "interrupted":
        raise KeyboardInterrupt  # half a rung measures nothing, nor would the next ones be wanted
    times = step_times(load_spans(folder / "events"))
    exposed = (0.0, 0.0, 0.0)
    if times is not None:
        parts = {part.name: part.seconds for part in times.parts}
        exposed = tuple(parts.get(f"wait_{axis}", 0.0) for axis in ("tp", "pp", "dp"))  # type: ignore[assignment]
    return result.tokens_per_s, result.mfu, exposed


def _result(rung: Rung, runs: list[tuple[float, float, tuple[float, float, float]]]) -> RungResult:
    tp, pp, dp = (statistics.median(run[2][i] for run in runs) for i in range(3))
    return RungResult(
        name=rung.name,
        sets=rung.sets,
        tokens_per_s=tuple(run[0] for run in runs),
        mfu=tuple(run[1] for run in runs),
        exposed_tp_s=tp,
        exposed_pp_s=pp,
        exposed_dp_s=dp,
    )
