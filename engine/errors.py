"""What can go wrong, in one base and six kinds.

Every error says what happened and what to do about it. This module imports nothing, so every room
may use it. `msctl/app.py` turns a kind into an exit code; nobody else exits.
"""


class EngineError(Exception):
    """A failure that a person can act on.

    `what` names the file and key, or the rank and step, the value found and the rule it breaks.
    `remedy` is one imperative sentence with concrete values.
    """

    def __init__(self, what: str, *, remedy: str) -> None:
        if not remedy:
            raise ValueError(f"error without a remedy: {what}")
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Let an error cross a process boundary with its remedy."""
        return (_rebuild, (type(self), self.what, self.remedy))


class RecipeError(EngineError):
    """A recipe or cluster file is wrong or contradicts itself."""


class LayoutError(EngineError):
    """Layout, model, batch and cluster do not fit together."""


class TraceError(EngineError):
    """Events, heartbeats, logs or dumps cannot be read."""


class CheckpointError(EngineError):
    """A checkpoint is absent, torn or belongs to another model."""


class MissingError(EngineError):
    """The machine lacks something: a GPU, a compiler, a port, disk space, a package."""


class RunFailed(EngineError):
    """Ranks died or hung beyond what the policy repairs."""


def _rebuild(kind: type[EngineError], what: str, remedy: str) -> EngineError:
    return kind(what, remedy=remedy)
