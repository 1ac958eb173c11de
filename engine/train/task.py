"""What every rank of a start is told, as JSON between driver, nursery and rank."""

from engine.spec.base import Noun


class RankTask(Noun, frozen=True, kw_only=True):
    """One start of a run."""

    folder: str
    world: int
    host: str
    port: int
    steps: int = 0
    """Steps to do in this invocation; 0 = up to the recipe's last."""
    resume: str = "auto"
    """`auto`, `never` or a step number."""
    local_offset: int = 0
    """Global rank of the first rank on this node."""
