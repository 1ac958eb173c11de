"""What a driver started, as it is kept for the driver after it."""

from typing import Annotated

from engine.spec.base import Noun, Size, doc


class StartRecord(Noun, frozen=True, kw_only=True):
    """One start of a job's ranks."""

    attempt: int
    order: tuple[str, ...]
    until: Size = 0
    skip: tuple[int, ...] = ()
    incidents: Annotated[Size, doc("number of the run's last incident before this invocation")] = 0
    over: Annotated[bool, doc("this invocation has ended: nothing of it counts for the next")] = (
        False
    )
