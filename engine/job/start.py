"""What a driver started, as it is kept for the driver after it."""

from engine.spec.base import Noun, Size


class StartRecord(Noun, frozen=True, kw_only=True):
    """One start of a job's ranks."""

    attempt: int
    order: tuple[str, ...]
    until: Size = 0
    skip: tuple[int, ...] = ()
