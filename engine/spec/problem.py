"""What is wrong with a recipe: key, sentence, remedy; and the error that carries many of them."""

from engine.errors import RecipeError
from engine.spec.base import Noun


class Problem(Noun, frozen=True, kw_only=True):
    """One fault of a file.

    `keys` are all keys the rule looks at, the one to change first; `where` is `file:line` or
    `--set`.
    """

    keys: tuple[str, ...]
    what: str
    remedy: str
    where: str = ""

    @property
    def shown(self) -> str:
        """Place and sentence, as printed after `error:`."""
        return f"{self.where}: {self.what}" if self.where else self.what


class RecipeProblems(RecipeError):
    """All faults of a file at once; `problems` is never empty."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        remedy = first.remedy
        if len(problems) > 1:
            remedy = f"correct all {len(problems)}, beginning with: {first.remedy}"
        super().__init__("\n".join(p.shown for p in problems), remedy=remedy)
        self.problems = problems

    def __reduce__(self) -> tuple[object, ...]:
        """Let the error cross a process boundary with all its problems."""
        return (RecipeProblems, (self.problems,))
