"""What `--set` holds fast in a plan: keys, their values, and the search space they leave."""

from collections.abc import Sequence
from typing import Any

from engine.errors import RecipeError
from engine.plan.goodput import Failures
from engine.plan.search import Space, divisors
from engine.plan.setup import RECOMPUTE, SCHEDULES, Job
from engine.spec.model import ModelSpec

_AXES = ("tp", "pp", "vpp", "dp", "cp", "ep")
_OTHER_SETS = (
    "schedule.kind",
    "layout.zero",
    "layout.sequence_parallel",
    "layout.recompute",
    "batch.micro_batch",
)
_MOST_ZERO = 3


def parse_sets(sets: Sequence[str]) -> dict[str, str]:
    """`layout.tp=8` as a pair; only keys that a plan can hold fast."""
    known = {f"layout.{axis}" for axis in _AXES} | set(_OTHER_SETS)
    known |= {f"model.{name}" for name in ModelSpec.__struct_fields__}
    known |= {f"goodput.{name}" for name in Failures.__struct_fields__}
    found = {}
    for item in sets:
        key, equals, value = item.partition("=")
        if not equals or key not in known or not value:
            raise RecipeError(
                f"--set {item}: not one of the keys that a plan can hold fast",
                remedy="use KEY=VALUE with one of layout.tp, layout.pp, layout.vpp, layout.dp, "
                f"layout.cp, layout.ep, {', '.join(_OTHER_SETS)}, model.*, goodput.*",
            )
        found[key] = value
    return found


def held(space: Space, sets: dict[str, str], job: Job) -> Space:
    """The axes that are set hold; a comma separates alternatives."""
    for key, text in sets.items():
        name = "schedule" if key == "schedule.kind" else key.split(".", 1)[1]
        if key.startswith(("model.", "goodput.")):
            continue
        fixed: dict[str, Any] = {name: tuple(_value(key, word) for word in text.split(","))}
        space = space._replace(**fixed)
    if job.experts is not None and "layout.ep" not in sets:
        space = space._replace(ep=tuple(d for d in divisors(job.experts.count) if d <= 64))
    return space


def _value(key: str, word: str) -> int | bool | str:
    """One alternative of a constraint."""
    if key == "layout.recompute":
        if word in RECOMPUTE:
            return word
    elif key == "schedule.kind":
        if word in SCHEDULES:
            return word
    elif key == "layout.sequence_parallel":
        if word in ("true", "false"):
            return word == "true"
    elif key == "layout.zero":
        if word.isdecimal() and int(word) <= _MOST_ZERO:
            return int(word)
    elif word.isdecimal() and len(word) < 8 and int(word) > 0:
        return int(word)
    raise RecipeError(
        f"--set {key}={word}: not a value of that key",
        remedy=f"e.g. --set layout.tp=8, --set layout.recompute={RECOMPUTE[1]}",
    )
