"""How a rule of `check_shape.py` or `check_run.py` looks at a recipe and words what it finds."""

from engine.spec.problem import Problem
from engine.spec.recipe import Recipe
from engine.spec.toml import show_value


class Keys:
    """Looks keys up by their dotted name and shows them as a recipe writes them.

    `given` are the keys that somebody wrote, as opposed to defaults; None means all of them.
    `wrong` are keys (or whole sections) whose values are only stand-ins.
    """

    def __init__(
        self,
        recipe: Recipe,
        given: frozenset[str] | None = None,
        wrong: frozenset[str] = frozenset(),
    ) -> None:
        self.recipe = recipe
        self._given = given
        self._wrong = wrong

    def number(self, key: str) -> int:
        """The whole number at a key."""
        value = self._value(key)
        assert isinstance(value, int), f"{key} holds {value!r}, not a whole number"
        return value

    def show(self, key: str) -> str:
        """`layout.tp = 6`, marked if nobody wrote it."""
        mark = "" if self.given(key) else " (default)"
        return f"{key} = {show_value(self._value(key))}{mark}"

    def given(self, key: str) -> bool:
        """Whether file, preset or --set names the key."""
        return self._given is None or key in self._given

    def is_wrong(self, key: str) -> bool:
        """Whether a key, or a section it lies in, is already known to be wrong."""
        while key and key not in self._wrong:
            key = key.rpartition(".")[0]
        return bool(key)

    def _value(self, key: str) -> object:
        value: object = self.recipe
        for name in key.split("."):
            value = getattr(value, name)
        return value


def problem(*keys: str, what: str, remedy: str) -> Problem:
    """A broken rule; the first key is the one to change, the others take part."""
    return Problem(keys=keys, what=what, remedy=remedy)


def divisors(number: int, near: int) -> str:
    """Up to two divisors of a number on each side of a value, in words."""
    every = [d for d in range(1, min(number, 1 << 16) + 1) if number % d == 0]
    chosen = [d for d in every if d <= near][-2:] + [d for d in every if d > near][:2]
    return " or ".join(str(d) for d in chosen)


def closest(number: int, near: int) -> int:
    """The largest divisor of a number up to a value."""
    return next(d for d in range(min(near, number), 0, -1) if number % d == 0)
