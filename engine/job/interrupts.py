"""Ctrl-C and SIGTERM, counted instead of died of."""

import contextlib
import signal
from collections.abc import Iterator


class Interrupts:
    """How often a person or a scheduler asked to stop: the first time kindly, then at once."""

    def __init__(self) -> None:
        self._count = self._seen = 0

    @property
    def any(self) -> bool:
        """Whether there was one."""
        return self._count > 0

    def fresh(self) -> int:
        """How many there are in all if there are new ones since the last call, else 0."""
        if self._seen == self._count:
            return 0
        self._seen = self._count
        return self._count

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Within this, signals are counted."""

        def count(*_: object) -> None:
            self._count += 1

        kinds = (signal.SIGINT, signal.SIGTERM)
        old = [signal.signal(kind, count) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, old, strict=True):
                signal.signal(kind, handler)
