"""Which options of `msctl plan` go together: one that would do nothing is a wrong command line."""

import typer

_INPUTS = (
    "recipe", "model", "gpus", "cluster", "batch", "seq", "precision", "system", "sets",
)  # fmt: skip
ANSWERS: dict[str, tuple[str, ...]] = {
    "validate": (),
    "calibrate": ("out", "cluster"),
    "ablate": (),
    "emit": (*_INPUTS, "exhaustive", "tokens", "top"),
    "exhaustive": (*_INPUTS, "top"),
    "goodput": (*_INPUTS, "days", "price"),
}
"""Options that ask for another answer than the ranked table, and what each of them heeds."""
_SEARCH = (*_INPUTS, "top", "tokens", "price", "explain", "schedule", "trace", "plot")
_NEEDS = {"days": ("goodput",), "out": ("calibrate",), "price": ("tokens", "days")}
"""Options that mean nothing without one of others."""
_NAMES = {"recipe": "RECIPE", "sets": "--set"}


def check_options(given: set[str], sets: tuple[str, ...]) -> None:
    """A wrong command line (exit 2) if options contradict or one of them would be ignored."""
    if {"recipe", "model"} <= given:
        raise typer.BadParameter("RECIPE and --model both name what is planned; give one of them")
    for name, others in _NEEDS.items():
        if name in given and not given & set(others):
            raise typer.BadParameter(
                f"{_shown(name)} does nothing without {' or '.join(map(_shown, others))}"
            )
    answer = next((name for name in ANSWERS if name in given), "")
    heeded = {answer, *(ANSWERS[answer] if answer else _SEARCH)}
    ignored = [name for name in sorted(given) if name not in heeded]
    if ignored:
        beside = _shown(answer) if answer else "the ranked table"
        raise typer.BadParameter(f"{', '.join(map(_shown, ignored))}: not used by {beside}")
    _check_sets("goodput" in given and "days" not in given, sets)


def _check_sets(has_formula: bool, sets: tuple[str, ...]) -> None:
    """Keys of failures belong to the formula of --goodput; simulated days have their own times."""
    wrong = [item for item in sets if item.startswith("goodput.")]
    if wrong and not has_formula:
        raise typer.BadParameter(f"--set {wrong[0]}: used by --goodput without --days only")


def _shown(name: str) -> str:
    """An option as it is typed."""
    return _NAMES.get(name, f"--{name}")
